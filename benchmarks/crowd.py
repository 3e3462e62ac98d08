"""Searches with many workers and many parameters: what they find, how alike their proposals are, and their cost.

Full trainings in virtual time, at equal numbers of trials: 400 on 64 workers, 800 on 256. The tasks have 40 or 100
parameters: of ``sparse``, five matter and five a little, and of ``dense``, all do, each less than the one before.

    python -m benchmarks.crowd [--quick] [--seeds N] [--json PATH]

Keys: ``crowd.regret.TASK.WORKERS.NAME``, the regret at the end; ``crowd.anytime``, its mean over the search;
``crowd.distance``, the distance of a running configuration from the nearest other one, by that of random ones;
``crowd.ask_s``, CPU seconds of a proposal; ``crowd.busy``, the share of time that the workers would be busy if each
training took a minute, with one process that proposes. Each with the task, the workers and the name: ``bayesian``,
``optuna_tpe`` and ``random``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import means, parser, publish
from benchmarks.drive import drive, search
from benchmarks.landscapes import Landscape, dense, sparse
from benchmarks.peers import optuna_tpe
from benchmarks.runs import CAP
from benchmarks.tasks import LastStep
from optimizers import BayesianSearch, RandomSearch

TRIALS = {64: 400, 256: 800}
"""Number of trials by that of workers."""
METHODS = ("bayesian", "optuna_tpe", "random")
MINUTE = 60.0
SEEDS = 3

Array = NDArray[np.float64]


class Watched(LastStep):
    """A task of one step that keeps the configurations in the order of their starts.

    Attributes:
        units: Points of the configurations in the unit cube.
        cpu: CPU seconds of the trainings, which are no part of a proposal.
    """

    def __init__(self, task: Landscape) -> None:
        super().__init__(task)
        self.units: list[Array] = []
        self.cpu = 0.0
        self._curve = task.curve

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        begin = time.process_time()
        self.units.append(self.space.to_unit(config))
        losses, seconds = self._curve(config)
        self.cpu += time.process_time() - begin
        return float(losses[-1]), float(seconds.sum())


def nearest(points: Array) -> float:
    """The mean distance of each point from the nearest other one, shape (n, d).

    Example:
        >>> nearest(np.array([[0.0], [0.1], [1.0]]))
        0.3666666666666667
    """
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    return float(distances.min(axis=1).mean())


def run(made: Landscape, method: str, seed: int, workers: int, n_trials: int) -> dict[str, float]:
    """One search, and what came of it.

    Example:
        >>> run(sparse(40), "random", 0, workers=64, n_trials=400)["regret"]
        0.41
    """
    task = Watched(made)
    begin = time.process_time()
    if method == "optuna_tpe":
        reports = drive(optuna_tpe(task.space, seed), task, workers=workers, n_trials=n_trials)
    else:
        optimizer = BayesianSearch() if method == "bayesian" else RandomSearch()
        reports = search(optimizer, task, seed=seed, workers=workers, n_trials=n_trials)
    ask = (time.process_time() - begin - task.cpu) / n_trials
    regrets = np.minimum(np.minimum.accumulate([float(made.regret(loss)) for _, loss in reports]), CAP)
    points = np.array(task.units[-workers:])
    drawn = np.random.default_rng(seed).random(points.shape)
    return {
        "regret": float(regrets[-1]),
        "anytime": float(regrets.mean()),
        "distance": nearest(points) / nearest(drawn),
        "ask_s": ask,
        "busy": min(1.0, MINUTE / (workers * ask)),
    }


def main() -> None:
    """Search and print."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS}, or 1 with --quick")
    arguments = options.parse_args()
    warnings.simplefilter("ignore")  # of Optuna, which is taken as it is
    seeds = arguments.seeds or (1 if arguments.quick else SEEDS)
    tasks = [sparse(40)] if arguments.quick else [sparse(40), sparse(100), dense(40), dense(100)]
    figures: dict[str, float] = {}
    for made in tasks:
        for workers, n_trials in list(TRIALS.items())[: 1 if arguments.quick else None]:
            for method in METHODS:
                found = means(run(made, method, seed, workers, n_trials) for seed in range(seeds))
                figures |= {f"crowd.{key}.{made.name}.{workers}.{method}": value for key, value in found.items()}
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
