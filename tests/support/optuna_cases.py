"""Optuna's samplers, spaces and searches that several tests of its adapter share."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import optuna
import pytest
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    NSGAIISampler,
    PartialFixedSampler,
    RandomSampler,
)
from optuna.trial import FrozenTrial

from optimizers.core.base import History, Optimizer
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.space import Config
from optimizers.space.domains import Choice, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="Optuna's Gaussian process needs torch")

PLANE = SearchSpace(x=Float(0, 1), y=Float(0, 1))
TWISTED = SearchSpace(
    steps=Float(0.1, 0.95, step=0.2),
    whole=Integer(3, 20, step=4),
    logs=Integer(1, 500, log=True),
    truth=Choice([1, True, None, "1"]),
    one=Choice(["only"], when={"truth": [True, 1]}),
    sizes=Ordinal([64, 8, "huge"], when={"one": "only"}),
    fixed=3,
)


def cma(seed: int) -> BaseSampler:
    return CmaEsSampler(seed=seed, popsize=4)


def nsga(seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=4)


class Witness(RandomSampler):
    """Notes what it is shown."""

    def __init__(self, seed: int, seen: list[FrozenTrial]) -> None:
        super().__init__(seed)
        self.seen = seen

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        self.seen[:] = study.get_trials()[:-1]  # the last is the one that is asked for
        return {}


def shown(history: History) -> list[FrozenTrial]:
    seen: list[FrozenTrial] = []
    OptunaSampler(lambda seed: Witness(seed, seen)).ask(len(history.observations), history)
    return seen


def fixing(values: dict[str, Any]) -> OptunaSampler:
    return OptunaSampler(lambda seed: PartialFixedSampler(values, cma(seed)))


def bowl(config: Config) -> float:
    return float((config["x"] - 0.7) ** 2 + (config["y"] - 0.2) ** 2)


def search(optimizer: Optimizer, n: int, workers: int, space: SearchSpace = PLANE) -> Study:
    study = Study(space, optimizer, direction="min", seed=1, n_trials=n)
    running: list[Trial] = []
    while (trial := study.ask()) or running:
        if trial:
            running.append(trial)
        if trial is None or len(running) == workers:
            done = running.pop(len(study.trials) % len(running))
            study.tell(done, bowl(done.config))
    return study
