"""What a suggestion costs, as the observations grow: CPU seconds on one thread.

A space of 10 dimensions: four real numbers, two of them on a log scale, three integers, three choices. After n
results of random configurations, with 4 configurations running, each ask follows one new result, as in a search that
goes on, so refits are in the mean; the first ask, which meets all n at once, is not.

    python -m benchmarks.suggest [--quick] [--json PATH]
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import parser, publish
from benchmarks.drive import Peer
from benchmarks.peers import SkoptSearch, optuna_gp, optuna_tpe
from optimizers import (
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
    make_optimizer,
)

SIZES = (50, 100, 200, 500, 1000)
SLOW = {"skopt_gp": (50, 100, 200), "optuna_gp": SIZES}
"""Who takes seconds: scikit-optimize takes a minute for each suggestion at 500."""
QUICK_SIZES = (50, 100)
"""Of the slow ones with ``--quick``."""
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


LEARNERS: dict[str, tuple[str, Callable[[int], Learner]]] = {
    "random": ("optimizers", lambda n: Ours(make_optimizer("random"), n)),
    "bayesian": ("optimizers", lambda n: Ours(make_optimizer("bayesian"), n)),
    "optuna_tpe": ("optuna", lambda n: optuna_tpe(SPACE, 0)),
    "optuna_gp": ("optuna", lambda n: optuna_gp(SPACE, 0)),
    "skopt_gp": ("skopt", lambda n: SkoptSearch(SPACE, 0)),
}
"""The module that each needs, and how it begins."""


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    figures: dict[str, float] = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (module, make) in LEARNERS.items():
            if importlib.util.find_spec(module) is None:
                print(f"{name} is not installed and left out")
                continue
            sizes = QUICK_SIZES if arguments.quick and name in SLOW else SLOW.get(name, SIZES)
            for n in sizes:
                figures[f"{name}.cpu_s.{n}"] = seconds(make(n), n)
                print(f"{name} after {n} results: {figures[f'{name}.cpu_s.{n}']:.3f} s", flush=True)
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
