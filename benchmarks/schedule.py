"""Population-based training where the best learning rate falls as a training goes on, and the best schedule is known.

A step wins the most where the learning rate is the best one of that step, which falls by three orders of magnitude in a
training of 50 steps; a second parameter has one best value. 16 workers in virtual time, for as long as one training
takes. The loss is 0 with the best schedule and 1 where nothing is won. Random search trains 16 configurations to the
end; its limit is the best constant learning rate.

    python -m benchmarks.schedule [--quick] [--json PATH]

Keys: ``schedule.loss.NAME``, means over 10 seeds, with ``schedule.low.NAME`` and ``schedule.high.NAME`` (95 %, a
bootstrap); ``schedule.loss.best_constant``, what no search of constants can pass. Names: ``pbt`` and ``random``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import parser, publish
from maggy_like import Float, simulate
from optimizers import PBT, Optimizer, RandomSearch, Study

STEPS, WORKERS = 50, 16
SPACE = {"lr": Float(1e-5, 1.0, log=True), "decay": Float(0.0, 1.0)}
_FIRST, _LAST = -1.0, -4.0  # logarithms of the best learning rates
_WIDTH = 0.5  # how far off, in orders of magnitude, a learning rate still wins a third
_DECAY = 0.3  # the best of the second parameter
BOOTSTRAPS = 1000


def best_lr(step: int) -> float:
    """The best learning rate of a step, from 1 on."""
    return float(10.0 ** (_FIRST + (_LAST - _FIRST) * (step - 1) / (STEPS - 1)))


def train(config: Mapping[str, Any], step: int, state: Any) -> tuple[float, float, Any]:
    """The loss after a step, its seconds, and what the training has won by then."""
    off = math.log10(config["lr"] / best_lr(step)) / _WIDTH
    won = state + math.exp(-off * off) * (1.0 - (config["decay"] - _DECAY) ** 2) / STEPS
    return 1.0 - won, 1.0, won


def best_constant() -> float:
    """The loss of the best learning rate that stays the same."""

    def loss(lr: float) -> float:
        won = 0.0
        for step in range(1, STEPS + 1):
            value, _, won = train({"lr": lr, "decay": _DECAY}, step, won)
        return value

    return min(loss(float(lr)) for lr in np.logspace(_LAST, _FIRST, 301))


def found(optimizer: Optimizer, seed: int) -> float:
    """The least loss of a search that takes as long as one training."""
    study = Study(SPACE, optimizer, direction="min", seed=seed, max_budget=STEPS)
    simulate(study, train, workers=WORKERS, state=0.0, horizon=STEPS)
    assert study.best is not None
    assert study.best.value is not None
    return study.best.value


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    seeds = range(3 if arguments.quick else 10)
    methods: dict[str, Callable[[], Optimizer]] = {"pbt": lambda: PBT(population=WORKERS), "random": RandomSearch}
    figures = {"schedule.loss.best_constant": best_constant()}
    rng = np.random.default_rng(0)
    for name, make in methods.items():
        losses = np.array([found(make(), seed) for seed in seeds])
        low, high = np.percentile(rng.choice(losses, (BOOTSTRAPS, len(losses))).mean(axis=1), [2.5, 97.5])
        figures |= {f"schedule.loss.{name}": float(losses.mean())}
        figures |= {f"schedule.low.{name}": float(low), f"schedule.high.{name}": float(high)}
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
