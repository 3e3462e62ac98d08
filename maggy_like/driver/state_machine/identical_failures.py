"""Detects that all trials fail in the same way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from maggy_like.errors import TrialsFailedError
from optimizers.core.events import AttemptEnded
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState

_SUCCEEDED = (TrialState.COMPLETED, TrialState.PAUSED)
_LEAST_AT_THE_END = 2
"""Minimum number of failed trials from which a search that ends may conclude that the function is wrong."""


@dataclass
class _Outcomes:
    """Outcomes of attempts: the trials that failed by cause, and whether any succeeded."""

    failed: dict[tuple[FailureKind, str, str], set[int]] = field(default_factory=dict)
    newest: Failure | None = None
    has_success: bool = False


class IdenticalFailures:
    """Counts the trials that failed identically while none has succeeded.

    Trials that continue after a pause are counted separately: that all of them started well does not show that they
    can continue, for example if a function saves a state that it cannot restore.

    A resumed search counts from zero, and retries the trials that had ended it, because the function may have been
    fixed. A success before the resume still counts.

    Args:
        enough: Number of failed trials that ends the search; 0 for never.
        catch: Names of exceptions that do not count.
        retries: Whether the scheduler can forget that a trial has failed, so that a resumed run tries it again.

    Attributes:
        enough: Number of failed trials that ends the search; it follows the number of workers.
    """

    def __init__(self, enough: int, catch: Collection[str], *, retries: bool = True) -> None:
        self.enough = enough
        self._retries = retries
        self._catch = frozenset(catch)
        self._paused = set[int]()
        self._begun, self._continued = _Outcomes(), _Outcomes()

    def replay(self, event: AttemptEnded) -> None:
        """Record whether an attempt succeeded, in this run or before a resume."""
        self._outcomes(event.trial).has_success |= event.state in _SUCCEEDED
        if event.state is TrialState.PAUSED:
            self._paused.add(event.trial)

    def take(self, event: AttemptEnded) -> None:
        """Count the failure of an attempt of this run, if it is one."""
        failure = event.failure
        if failure is None or not self._counts(failure):
            return
        outcomes = self._outcomes(event.trial)
        outcomes.failed.setdefault(failure.cause, set()).add(event.trial)
        outcomes.newest = failure

    def to_retry(self, trials: Sequence[Trial], enough: int) -> list[Trial]:
        """Return the failed trials that had ended a search according to its journal; a resumed search retries them.

        Args:
            trials: All trials of the study.
            enough: Minimum number of failed trials that ended it; 0 for never.
        """
        found: list[Trial] = []
        for outcomes in (self._begun, self._continued) if enough else ():
            identical: dict[object, list[Trial]] = {}
            for trial in trials:
                failure = trial.failure
                if trial.state is not TrialState.FAILED or trial.training or failure is None:
                    continue
                if self._counts(failure) and self._outcomes(trial.id) is outcomes:
                    identical.setdefault(failure.cause, []).append(trial)
            most = max(identical.values(), key=len, default=[])
            at_end = max(sum(not trial.training for trial in trials), _LEAST_AT_THE_END)
            if not outcomes.has_success and len(most) >= min(enough, at_end):
                found += most
        return found

    def error(self, n_trials: int | None = None) -> TrialsFailedError | None:
        """Return the error that must end the search, if any.

        Args:
            n_trials: Number of trials if none will follow: it is enough that all of them failed identically.
        """
        if not self.enough:
            return None
        return self._error(self._begun, n_trials) or self._error(self._continued, n_trials)

    def _counts(self, failure: Failure) -> bool:
        return failure.kind.is_fault and not self._catch.intersection(failure.types)

    def _outcomes(self, trial: int) -> _Outcomes:
        return self._continued if trial in self._paused else self._begun

    def _error(self, outcomes: _Outcomes, n_trials: int | None) -> TrialsFailedError | None:
        if outcomes.has_success or (failure := outcomes.newest) is None:
            return None
        count = len(outcomes.failed[failure.cause])
        if count < self.enough and (n_trials is None or count < max(n_trials, _LEAST_AT_THE_END)):
            return None
        where = " when they continued after a pause" if outcomes is self._continued else ""
        kind = failure.types[0].rpartition(".")[2] if failure.types else ""
        catch = f", or catch=({kind},) for failures of this type" if kind else ""
        if self._retries:
            remedy = (
                "Fix the function and use resume=True with the run's name to retry them (if metric or another argument "
                "is wrong, start another run)"
            )
        else:
            remedy = "Fix the function and start another run, since this optimizer does not retry failed trials"
        return TrialsFailedError(
            f"{count} trials failed identically{where} and none has succeeded, so the search has ended: "
            f"{failure.message}",
            failure.traceback,
            f"{remedy}. To try all configurations anyway, use failures=FailurePolicy(max_identical_failures=0){catch}.",
        )
