"""The confirmation after a search: its best trials are trained again with other seeds."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optimizers.core.events import TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Repeat, Trial, TrialState

if TYPE_CHECKING:
    from optimizers.comparisons.confirmation import Standing

_MOST_EQUAL = 8  # trials per candidate that are looked at, since several may have one configuration


@dataclass(frozen=True, slots=True)
class ConfirmationPlan:
    """The repeats of the best trials after the search."""

    top: int  # number of trials that are repeated
    repeats: int  # maximum number of repeats of each
    steps: int  # budget of a repeat


class Confirming:
    """Decides which trials of the search are repeated, and how often. All follows from the study."""

    def __init__(self, study: Study, plan: ConfirmationPlan) -> None:
        from optimizers.comparisons import confirmation  # loads scipy, which only confirmations should cost

        self._study = study
        self._plan = plan
        self._functions = confirmation
        self._known: tuple[object, Standing] | None = None

    def look_again(self) -> None:
        """Forget the candidates, since the search has new results."""
        self._known = None

    def take(self) -> TrialCreated | None:
        """Return the event that creates the next repeat. None if no more are due now."""
        standing = self._standing()
        if standing.is_over:
            return None
        begun = {(trial.repeat.of, trial.repeat.number) for trial in self._study.repeats if trial.repeat is not None}
        for number in range(standing.rounds):
            for of in standing.racing:
                if (of, number) not in begun:
                    return self._created(of, number)
        return None

    @property
    def is_over(self) -> bool:
        """Whether all repeats have ended, and no more are due."""
        return self._standing().is_over and all(trial.is_over for trial in self._study.repeats)

    @property
    def recommended(self) -> Trial | None:
        """The trial of the search whose repeats are the best so far. None if all have failed."""
        leader = self._standing().leader
        return None if leader is None else self._study.trials[leader]

    def _created(self, of: int, number: int) -> TrialCreated:
        seed = self._functions.FIRST_SEED + number
        config = {**self._study.trials[of].config, "seed": seed}
        repeat = Repeat(of, number, self._plan.top, self._plan.repeats)
        return TrialCreated(len(self._study.trials), config, training=self._plan.steps, repeat=repeat)

    def _standing(self) -> Standing:
        """Return the state of the race. After the search, it only changes when a trial or a repeat ends."""
        ended = sum(trial.is_over for trial in self._study.repeats), dict(self._study.counts)
        if self._known is None or self._known[0] != ended:
            losses = self._functions.losses_of(self._study)
            known = self._functions.standing(losses, self._candidates(), self._plan.repeats)
            self._known = ended, known
        return self._known[1]

    def _candidates(self) -> list[int]:
        """Return the best distinct configurations of the search, and those that have repeats already."""
        study = self._study
        best: dict[bytes, int] = {}
        ranked = ((study.loss(trial.value), trial.id, trial) for trial in study.trials if not trial.training)
        known = (each for each in ranked if math.isfinite(each[0]) and each[2].state is not TrialState.FAILED)
        for _, number, trial in heapq.nsmallest(_MOST_EQUAL * self._plan.top, known):
            best.setdefault(study.problem.space.key(trial.config), number)
        chosen = [*best.values()][: self._plan.top]
        return list(dict.fromkeys([*chosen, *self._functions.repeated(study)]))
