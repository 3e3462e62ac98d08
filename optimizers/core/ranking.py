"""What each trial is worth, and which trial is the best."""

from __future__ import annotations

import heapq
import math
from typing import Literal

from optimizers.checks.options import short
from optimizers.core.objectives import Objectives
from optimizers.core.trial import Trial, TrialState
from optimizers.errors import UserError

Worth = Literal["best", "last"]
"""What a trial is worth: the best of its reports, or the newest one as it last paused or ended."""

WORTHS: tuple[Worth, ...] = ("best", "last")


class Ranking:
    """Keeps what trials are worth, and the best of them.

    Where a trial is worth its best report, its value can only get better, and so can the best value of all: a trial
    that fails after good reports keeps them, since they were measured and its saved states stay. Where it is worth
    the newest one, a trial is ranked by what it last paused or ended with (while it runs for the first time, by its
    newest report), and one that failed does not count.

    A value that is not finite is worth less than any other, and never the best.

    What a function returns is a result of its attempt. It has no step of its own, and it is not known to which state it
    belongs: so a trial is worth it only while the function has reported nothing, or if there are several objectives.

    Args:
        trials: Of the study, which appends to them. Trainings are not ranked.
        objectives: The first of them is what trials are ranked by.
        worth: The rule. A search of several objectives goes by what trials end with, whatever this says.

    Raises:
        UserError: The rule is unknown.
    """

    def __init__(self, trials: list[Trial], objectives: Objectives, worth: Worth = "best") -> None:
        if worth not in WORTHS:
            raise UserError(f"value must be 'best' or 'last', got {short(worth)}")
        self.worth: Worth = worth if len(objectives) == 1 else "last"
        self._trials = trials
        self._objectives = objectives
        self._heap: list[tuple[float, int]] = []  # (loss, trial); may hold stale entries

    @property
    def best(self) -> Trial | None:
        """The trial that is worth most; None while none is worth anything, or where there are several objectives."""
        while self._heap and len(self._objectives) == 1:
            loss, number = self._heap[0]
            trial = self._trials[number]
            if self._loss(trial) == loss:
                return trial
            heapq.heappop(self._heap)
        return None

    def measured(self, trial: Trial, value: float, loss: float, step: int | None) -> bool:
        """Take in a report of a running trial, which is a loss as well; whether the trial is worth it now."""
        trial.last_value = value
        if self.worth == "last":
            counts = not trial.rested
        else:
            counts = trial.value is None or loss < self._objectives.loss(trial.value)
        if counts:
            self._enter(trial, value, loss, step)
        return counts

    def returned(self, trial: Trial, value: float, loss: float) -> bool:
        """Take in what an attempt ended with; whether the trial is worth it now."""
        if self._goes_by_returned(trial):
            return self.measured(trial, value, loss, None)
        trial.last_value = value
        return False

    def rested(self, trial: Trial) -> None:
        """Take in that an attempt has ended that no other follows by itself."""
        trial.rested = True
        is_returned = self._goes_by_returned(trial)
        value = trial.last_value if is_returned else trial.curve.last
        if self.worth == "last" and value is not None:
            step = None if is_returned and value != trial.curve.last else trial.reported
            self._enter(trial, value, self._objectives.loss(value), step)

    def _goes_by_returned(self, trial: Trial) -> bool:
        return trial.reported is None or len(self._objectives) > 1

    def _enter(self, trial: Trial, value: float, loss: float, step: int | None) -> None:
        trial.value, trial.value_step = value, step
        if loss < math.inf and not trial.training:
            entry = loss, trial.id
            if self.worth == "best" and self._heap:  # no value gets worse, so the best of all is never stale
                if entry < self._heap[0]:
                    self._heap[0] = entry
                return
            heapq.heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._trials) + 64:  # keep stale entries from piling up
                losses = ((self._loss(each), each.id) for each in self._trials if not each.training)
                self._heap = [entry for entry in losses if math.isfinite(entry[0])]
                heapq.heapify(self._heap)

    def _loss(self, trial: Trial) -> float:
        """What a trial is ranked by; ``inf`` if it does not count."""
        if self.worth == "last" and trial.state is TrialState.FAILED:
            return math.inf
        return self._objectives.loss(trial.value)
