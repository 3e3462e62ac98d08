"""Which saved states may be removed from the store."""

from __future__ import annotations

from collections import Counter

from optimizers.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, TrialCreated
from optimizers.study import Study

_KEPT = 2
"""States that a worker leaves of those of one attempt that the driver was told of."""


class SavedStates:
    """Keeps account of the states in the store, and of the trials that would go on from each.

    An attempt removes nothing that another one saved. With the next attempt of a trial, its worker is told
    what became of no use: what earlier attempts left, and neither this trial nor one that started from it
    (see :class:`~optimizers.base.Proposal`) would go on from any more.

    Args:
        study: The ledger, which has taken in each event before this does.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._left: dict[int, list[tuple[int, str]]] = {}  # attempt and URL, by the trial that saved it
        self._needed: dict[int, set[str]] = {}  # by trial
        self._needs: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case CheckpointSaved(trial=trial, attempt=attempt, url=url):
                left = self._left.setdefault(trial, [])
                left.append((attempt, url))
                if len(left) > _KEPT and left[-1 - _KEPT][0] == attempt:
                    del left[-1 - _KEPT]
                self._count(trial)
            case AttemptEnded(trial=trial) | TrialCreated(trial=trial, parent=int()):
                self._count(trial)
            case AttemptStarted(trial=trial) if trial in self._left:
                self._left[trial] = [state for state in self._left[trial] if self._needs[state[1]]]

    def unneeded(self, trial: int) -> tuple[str, ...]:
        """What a worker may remove as the next attempt of ``trial`` starts."""
        return tuple(url for _, url in self._left.get(trial, ()) if not self._needs[url])

    def _count(self, number: int) -> None:
        """Enter what a trial, and those that may yet start from it, would go on from."""
        trial = self._study.trials[number]
        needed = {state.url for state in (trial.checkpoint, trial.rest) if state is not None}
        before = self._needed.get(number, set())
        if needed != before:
            self._needs.update(needed - before)
            for url in before - needed:
                self._needs[url] -= 1
                if not self._needs[url]:
                    del self._needs[url]
            self._needed[number] = needed
