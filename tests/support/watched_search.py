"""The searches that a witness plays: every optimizer, few steps, few workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hand import settings_of
from odd_optimizers import Climber

from maggy_like.driver.state_machine import StateMachine
from optimizers.core.base import Optimizer
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import Grid, RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import Patience
from optimizers.space.domains import Float

SLOTS = 3
HEARTBEAT = 15.0
GRID = 10
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "random": RandomSearch,
    "grid": lambda: Grid(GRID),
    "promotion": lambda: ASHA(sampler="random", eta=2),
    "adaptive": lambda: ASHA(eta=2, sampler=Climber()),
    "stopping": lambda: ASHA(sampler="random", eta=2, mode="stopping"),
    "patience": lambda: Patience(ASHA(sampler="random", eta=2, min_budget=2), patience=1),
    "pbt": lambda: PBT(population=2, interval=1, quantile=0.5),
}


@dataclass(frozen=True)
class Search:
    """What is searched, how, and with what patience."""

    name: str
    direction: Literal["max", "min"]
    n_trials: int
    points: int
    max_attempts: int
    trial_timeout: float | None
    workers: int  # that are there from the beginning
    prompt: bool  # whether the optimizer answers at once

    def study(self) -> Study:
        optimizer = OPTIMIZERS[self.name]()
        n_trials = max(self.n_trials, 3) if self.name == "pbt" else self.n_trials
        points = [{"x": 0.5}] * self.points
        return Study(
            {"x": Float(0, 1)}, optimizer, direction=self.direction, max_budget=4, n_trials=n_trials, points=points
        )

    @property
    def size(self) -> int:
        """The number of trials that there will be; the most, of a population."""
        if self.name == "pbt":
            return max(self.n_trials, 3)
        return min(self.n_trials, self.points + GRID) if self.name == "grid" else self.n_trials

    def machine(self) -> StateMachine:
        study = self.study()
        settings = settings_of(study, max_attempts=self.max_attempts, trial_timeout=self.trial_timeout)
        return StateMachine(study, settings, size=SLOTS, heartbeat_timeout=HEARTBEAT)
