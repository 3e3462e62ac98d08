"""What a suggestion costs, as the observations grow: CPU seconds on one thread.

A space of 10 dimensions: four real numbers, two of them on a log scale, three integers, three choices. After n
results of random configurations, with 4 configurations running, each ask follows one new result, as in a search that
goes on, so refits are in the mean; the first ask, which meets all n at once, is not.

    python -m benchmarks.suggest [--quick] [--json PATH]
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import parser, publish
from benchmarks.drive import Peer
from benchmarks.peers import optuna_gp, optuna_tpe
from optimizers import (
    BayesianSearch,
    Choice,
    Config,
    Float,
    History,
    Integer,
    Observation,
    Optimizer,
    Pending,
    Problem,
    SearchSpace,
)

SIZES = (50, 100, 200, 500, 1000)
RUNNING = 4
ASKS = 5

SPACE = SearchSpace(
    lr=Float(1e-5, 1.0, log=True),
    weight_decay=Float(1e-8, 1e-1, log=True),
    momentum=Float(0.0, 0.99),
    dropout=Float(0.0, 0.7),
    layers=Integer(1, 12),
    units=Integer(16, 2048, log=True),
    batch=Integer(16, 512, log=True),
    activation=Choice(["relu", "gelu", "tanh", "silu"]),
    optimizer=Choice(["sgd", "adam", "lion"]),
    schedule=Choice(["constant", "cosine", "linear"]),
)


class Learner(Peer, Protocol):
    """A search that also takes results from elsewhere."""

    def add(self, config: Config, loss: float) -> None:
        """Take one in."""
        ...


class Ours:
    """One of our optimizers, asked and told like the others."""

    def __init__(self, optimizer: Optimizer, n: int) -> None:
        self._optimizer = optimizer
        self._history = History(Problem(SPACE))
        self._earlier = n  # results from elsewhere have the numbers before those of its own trials

    def ask(self, trial: int) -> Config:
        config = self._optimizer.ask(self._earlier + trial, self._history)
        assert isinstance(config, dict)
        self._history.apply(Pending(self._earlier + trial, config))
        return config

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        number = self._earlier + trial
        self._history.apply(Observation(number, self._history.pending[number], step, loss))
        return False

    def add(self, config: Config, loss: float) -> None:
        self._history.apply(Observation(len(self._history.observations), config, 1, loss))


LEARNERS: dict[str, Callable[[int], Learner]] = {
    "bayesian": lambda n: Ours(BayesianSearch(), n),
    "optuna_tpe": lambda n: optuna_tpe(SPACE, 0),
    "optuna_gp": lambda n: optuna_gp(SPACE, 0),
}
"""Begins each search, which will get so many results from elsewhere."""


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    figures: dict[str, float] = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in LEARNERS.items():
            is_slow = name == "optuna_gp"  # it takes seconds
            for n in SIZES[:2] if arguments.quick and is_slow else SIZES:
                figures[f"{name}.cpu_s.{n}"] = seconds(make(n), n)
    publish(figures, arguments.json)


def seconds(learner: Learner, n: int) -> float:
    """CPU seconds of one suggestion by a new learner, after ``n`` results."""
    rng = np.random.default_rng(n)
    for _ in range(n):
        config = SPACE.sample(rng)
        learner.add(config, loss(config, rng))
    configs = [learner.ask(trial) for trial in range(RUNNING)]
    times = []
    for trial in range(ASKS + 1):
        result = loss(configs[trial], rng)
        start = time.process_time()
        learner.report(trial, 1, result, last=True)
        configs.append(learner.ask(trial + RUNNING))
        times.append(time.process_time() - start)
    return statistics.fmean(times[1:])


def loss(config: Config, rng: np.random.Generator) -> float:
    """Smooth in the numbers, a step for each choice, and a little noise."""
    units = SPACE.to_unit(config)
    return float(((units[:7] - 0.4) ** 2).sum() + 0.1 * units[7:].sum() + 0.01 * rng.standard_normal())


if __name__ == "__main__":
    main()
