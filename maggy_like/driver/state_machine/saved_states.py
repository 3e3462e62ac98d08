"""The saved states that may be removed from the store."""

from __future__ import annotations

from collections import Counter

from maggy_like.protocol.state_names import parse_name
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, TrialCreated
from optimizers.core.study import Study


class SavedStates:
    """Records which states are in the store, and which trials would continue from each.

    An attempt keeps the last few states that the journal knows, and that of its best value. With the next attempt of a
    trial, its worker receives the names of the states to remove: those of earlier attempts from which neither this
    trial nor one that started from it (see :class:`~optimizers.core.base.Proposal`) would continue.

    Args:
        study: State of the study; it receives each event before this object.
        keep: Minimum number of states of an attempt to keep.
    """

    def __init__(self, study: Study, keep: int) -> None:
        self._study = study
        self._keep = keep
        self._left: dict[int, list[tuple[int, str]]] = {}  # attempt and name, by the trial that saved it
        self._needed: dict[int, set[str]] = {}  # by trial
        self._needs: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Record an event."""
        match event:
            case AttemptEnded():
                self._count(event.trial)
            case AttemptStarted(trial=trial):
                if trial in self._left:
                    self._left[trial] = [state for state in self._left[trial] if self._needs[state[1]]]
            case TrialCreated(parent=int()):
                self._count(event.trial)
            case CheckpointSaved(trial=trial, attempt=attempt, name=name):
                self._left.setdefault(trial, []).append((attempt, name))
                self._count(trial)

    def superseded(self, trial: int) -> tuple[str, ...]:
        """Return once the states of the present attempt of ``trial`` that its worker may remove."""
        left = self._left[trial]
        present = [name for attempt, name in left if attempt == left[-1][0]]
        gone = {name for name in present[: -self._keep] if not self._needs[name]}
        if gone:
            self._left[trial] = [state for state in left if state[1] not in gone]
        return tuple(name for name in present if name in gone)

    def unneeded(self, trial: int) -> tuple[str, ...]:
        """Return the states that a worker may remove when the next attempt of ``trial`` starts."""
        return tuple(name for _, name in self._left.get(trial, ()) if not self._needs[name])

    def older(self, name: str) -> tuple[str, ...]:
        """Return earlier states of the same trial than ``name`` that may still exist, newest first."""
        names = [state for _, state in self._left.get(parse_name(name).trial, ())]
        return tuple(reversed(names[: names.index(name)])) if name in names else ()

    def _count(self, number: int) -> None:
        """Record what a trial, and those that may yet start from it, would continue from."""
        trial = self._study.trials[number]
        if trial.checkpoint is None and number not in self._needed:
            return  # nor has it any other state
        needed = {state.name for state in (trial.checkpoint, trial.rest, trial.best_checkpoint) if state is not None}
        before = self._needed.get(number, set())
        if needed != before:
            self._needs.update(needed - before)
            for name in before - needed:
                self._needs[name] -= 1
                if not self._needs[name]:
                    del self._needs[name]
            self._needed[number] = needed
