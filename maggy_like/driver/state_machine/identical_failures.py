"""Whether all trials fail in the same way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from maggy_like.errors import TrialsFailedError
from optimizers.core.events import AttemptEnded
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState

_SUCCEEDED = (TrialState.COMPLETED, TrialState.PAUSED)
_LEAST_AT_THE_END = 2
"""Fewest failed trials from which a search that ends may conclude that the function is wrong."""


@dataclass
class _Outcomes:
    """How attempts ended: the trials that failed by cause, and whether any succeeded."""

    failed: dict[tuple[FailureKind, str, str], set[int]] = field(default_factory=dict)
    newest: Failure | None = None
    has_success: bool = False


class IdenticalFailures:
    """Counts the trials that failed alike while none has succeeded.

    Trials that go on after a pause are counted by themselves: that all of them began well says nothing of how they go
    on, as where a function saves a state that it cannot restore.

    A resumed search counts from zero, and tries the trials again for which it had ended, since the function may have
    been fixed; a success before the resume still counts.

    Args:
        enough: How many end the search; 0 for never.
        expected: Names of exceptions that do not count.
        retries: Whether the scheduler can forget that a trial has failed, so that a resumed run tries it again.

    Attributes:
        enough: How many end the search; it follows a gang that grows.
    """

    def __init__(self, enough: int, expected: Collection[str], *, retries: bool = True) -> None:
        self.enough = enough
        self._retries = retries
        self._expected = frozenset(expected)
        self._paused = set[int]()
        self._begun, self._continued = _Outcomes(), _Outcomes()

    def replay(self, event: AttemptEnded) -> None:
        """Note whether an attempt succeeded, in this run or before a resume."""
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
        """The failed trials for which a search had ended, as its journal tells; a resumed one tries them again.

        Args:
            trials: All of the study.
            enough: How many ended it, at the least; 0 for never.
        """
        found: list[Trial] = []
        for outcomes in (self._begun, self._continued) if enough else ():
            alike: dict[object, list[Trial]] = {}
            for trial in trials:
                failure = trial.failure
                if trial.state is not TrialState.FAILED or trial.training or failure is None:
                    continue
                if self._counts(failure) and self._outcomes(trial.id) is outcomes:
                    alike.setdefault(failure.cause, []).append(trial)
            most = max(alike.values(), key=len, default=[])
            at_end = max(sum(not trial.training for trial in trials), _LEAST_AT_THE_END)
            if not outcomes.has_success and len(most) >= min(enough, at_end):
                found += most
        return found

    def error(self, n_trials: int | None = None) -> TrialsFailedError | None:
        """What the search must end with, if anything.

        Args:
            n_trials: How many trials there were, where none will follow: it is enough that all of them failed alike.
        """
        if not self.enough:
            return None
        return self._error(self._begun, n_trials) or self._error(self._continued, n_trials)

    def _counts(self, failure: Failure) -> bool:
        return failure.kind.is_fault and not self._expected.intersection(failure.types)

    def _outcomes(self, trial: int) -> _Outcomes:
        return self._continued if trial in self._paused else self._begun

    def _error(self, outcomes: _Outcomes, n_trials: int | None) -> TrialsFailedError | None:
        if outcomes.has_success or (failure := outcomes.newest) is None:
            return None
        count = len(outcomes.failed[failure.cause])
        if count < self.enough and (n_trials is None or count < max(n_trials, _LEAST_AT_THE_END)):
            return None
        where = " when they went on from a pause" if outcomes is self._continued else ""
        trace = f"\n\n{failure.traceback.rstrip()}\n" if failure.traceback else ""
        kind = failure.types[0].rpartition(".")[2] if failure.types else ""
        expected = f", or expected=({kind},) for failures of this type" if kind else ""
        if self._retries:
            remedy = (
                "Fix the function and go on with resume=True and the run's name, which tries them again (if metric or "
                "another argument is wrong, start another run instead)"
            )
        else:
            remedy = "Fix the function and start another run, since this optimizer does not try failed trials again"
        return TrialsFailedError(
            f"{count} trials failed alike{where} and none has succeeded, so the search has ended: "
            f"{failure.message}{trace}\n{remedy}. To try all configurations all the same, pass "
            f"failures=FailurePolicy(alike=0){expected}."
        )
