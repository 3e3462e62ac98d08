"""When failures end a run: trials that fail identically, and a store that refuses for too long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from maggy_like.driver.state_machine.interface import Show
from maggy_like.errors import StoreError, TrialsFailedError
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
    """

    def __init__(self, enough: int, catch: Collection[str], *, retries: bool = True) -> None:
        # Number of failed trials that ends the search; it follows the number of workers, and 0 means never.
        self.enough = enough
        # Whether the scheduler can forget that a trial has failed, so that a resumed run tries it again.
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

    def to_retry(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the failed trials that had ended a search according to its journal; a resumed search retries them.

        The last of those that ended it may still have an attempt left. It counts, and is retried anyway.
        """
        found: list[Trial] = []
        for outcomes in (self._begun, self._continued) if self.enough else ():
            identical: dict[object, list[Trial]] = {}
            for trial in trials:
                failure = trial.failure
                if trial.training or failure is None:
                    continue
                if self._counts(failure) and self._outcomes(trial.id) is outcomes:
                    identical.setdefault(failure.cause, []).append(trial)
            most = max(identical.values(), key=len, default=[])
            at_end = max(sum(not trial.training for trial in trials), _LEAST_AT_THE_END)
            if not outcomes.has_success and len(most) >= min(self.enough, at_end):
                found += [trial for trial in most if trial.state is TrialState.FAILED]
        return found

    def error(self, n_trials: int | None = None) -> TrialsFailedError | None:
        """Return the error that must end the search, if any.

        If no trial follows the ``n_trials`` ones, it is enough that all of them failed identically.
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


STORE_PATIENCE = 600.0
"""Seconds that a run waits for a store that refuses."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before a retry of an attempt that the store ended: the first and the longest; they double each time."""

MAX_REASON = 1000
"""Maximum characters of a worker's reason that are shown."""


@dataclass(slots=True)
class _Failing:
    """A trial whose attempts end because the store refuses: since when, how often, and when it is due again."""

    since: float
    last: float
    count: int = 0
    due: float = 0.0


class StoreOutage:
    """Counts the trials that wait for the store, from the first wait until all are served.

    A trial waits within its attempt. If several ranks write one state together, one cannot wait by itself: the attempt
    ends, and the trial waits for the next one.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._began: float | None = None
        self._reason = ""
        self._waiting: set[int] = set()
        self._waited: set[int] = set()
        self._failing: dict[int, _Failing] = {}
        self._has_begun = False  # ever: most runs need not look at every attempt at each tick

    def waits(self, trial: int, reason: str, now: float) -> list[Show]:
        """Note that a trial waits for the store."""
        self._has_begun = True
        self._waiting.add(trial)
        self._waited.add(trial)
        self._reason = reason[:MAX_REASON]
        if self._began is not None:
            return []
        self._began = now
        return [Show(f"{self._reason}; trials wait and try again")]

    def _failed(self, trial: int, reason: str, now: float) -> list[Show]:
        it = self._failing.get(trial)
        if it is None or now > it.due + LONGEST_PAUSE:  # it ran well for a while
            it = self._failing[trial] = _Failing(now, now)
        it.last, it.due = now, now + min(FIRST_PAUSE * 2**it.count, LONGEST_PAUSE)
        it.count += 1
        return self.waits(trial, reason, now)

    def served(self, trial: int, now: float) -> list[Show]:
        """Record that the store serves a trial again."""
        self._failing.pop(trial, None)
        self._waiting.discard(trial)
        if self._began is None or self._waiting:
            return []
        seconds, count = now - self._began, len(self._waited)
        self._forget()
        return [Show(f"the store serves again after {seconds:.0f} s; {count} trial{'s' * (count > 1)} waited for it")]

    def ended(self, trial: Trial, now: float) -> list[Show]:
        """Record the end of an attempt; if the store ended it, its trial is due again after a pause."""
        failure = trial.failure
        if trial.state is TrialState.PENDING and failure is not None and failure.kind is FailureKind.STORE:
            return self._failed(trial.id, failure.message, now)
        self._waiting.discard(trial.id)
        if not self._waiting:
            self._forget()
        return []

    def is_due(self, trial: int, now: float) -> bool:
        """Whether a trial may be retried."""
        return trial not in self._failing or now >= self._failing[trial].due

    def error(self, waits: Iterable[tuple[int, float]], now: float) -> StoreError | None:
        """Return the error that ends the run once a trial has waited for too long.

        ``waits`` are pairs of a trial and since when one of its workers waits, including those for a call to return.
        """
        if not self._has_begun:
            return None
        refused = [now - since for trial, since in waits if trial in self._waiting]
        seconds = max([*refused, *(it.last - it.since for it in self._failing.values())], default=0.0)
        if seconds < self._patience:
            return None
        waiting = (
            "1 waiting trial continues" if len(self._waiting) == 1 else f"{len(self._waiting)} waiting trials continue"
        )
        return StoreError(
            f"{self._reason}, for {seconds:.0f} s now; free space or fix the access, then use resume=True: the "
            f"{waiting} from the last checkpoint"
        )

    def _forget(self) -> None:
        self._began = None
        self._waited.clear()
