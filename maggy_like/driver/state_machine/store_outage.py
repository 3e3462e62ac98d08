"""The trials that wait for a store that refuses, and the time at which the run gives up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from maggy_like.driver.state_machine.commands import Show
from maggy_like.errors import StoreError
from optimizers.core.trial import FailureKind, Trial, TrialState

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

    Args:
        patience: Seconds that one trial may wait.
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

        Args:
            waits: Pairs of a trial and since when one of its workers waits, including those for a call to return.
            now: In seconds.
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
            f"{waiting} from the last saved state"
        )

    def _forget(self) -> None:
        self._began = None
        self._waited.clear()
