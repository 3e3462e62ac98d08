"""What as many trials are worth where 4, 16 or 64 workers run them at once: fewer results when a trial is chosen.

100 full trainings in virtual time, on three tables and on three made landscapes (forty and a hundred parameters;
noise as large as differences), each by its last step. Normalised regret (0 is the best, 1 the median of random
configurations).

    python -m benchmarks.many_workers [--quick] [--json PATH]

Keys: ``workers.regret.TASK.NAME.N`` and ``workers.worst.TASK.NAME.N``, mean and worst of 5 seeds;
``workers.cpu_s.NAME.N``. Names: ``bayesian``, ``optuna_tpe``, ``random``.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import parser, publish
from benchmarks.drive import Reports, drive, search
from benchmarks.landscapes import NAMES, landscape
from benchmarks.peers import optuna_tpe
from benchmarks.runs import CAP
from benchmarks.tables import table
from benchmarks.tasks import LastStep, Task
from optimizers import BayesianSearch, RandomSearch

TASKS = ("fcnet-protein", "nas-cifar100", "mlp-vehicle", "forty", "hundred", "noisy")
QUICK = ("forty", "noisy")
COUNTS = (4, 16, 64)
METHODS = ("bayesian", "optuna_tpe", "random")
SEEDS, N_TRIALS = 5, 100


def reports(name: str, task: Task, seed: int, workers: int) -> Reports:
    """One search."""
    if name == "optuna_tpe":
        return drive(optuna_tpe(task.space, seed), task, workers=workers, n_trials=N_TRIALS)
    optimizer = BayesianSearch() if name == "bayesian" else RandomSearch()
    return search(optimizer, task, seed=seed, workers=workers, n_trials=N_TRIALS)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    warnings.simplefilter("ignore")  # of Optuna, which is taken as it is
    figures: dict[str, float] = {}
    seconds: dict[str, list[float]] = {}
    for each in QUICK if arguments.quick else TASKS:
        task = LastStep(landscape(each) if each in NAMES else table(each))
        for workers in COUNTS:
            for name in METHODS:
                regrets = []
                for seed in range(2 if arguments.quick else SEEDS):
                    start = time.process_time()
                    losses = [loss for _, loss in reports(name, task, seed, workers)]
                    seconds.setdefault(f"workers.cpu_s.{name}.{workers}", []).append(time.process_time() - start)
                    regrets.append(min(float(task.regret(np.nanmin(losses))), CAP))
                figures[f"workers.regret.{each}.{name}.{workers}"] = float(np.mean(regrets))
                figures[f"workers.worst.{each}.{name}.{workers}"] = max(regrets)
    publish(figures | {key: float(np.mean(each)) for key, each in seconds.items()}, arguments.json)


if __name__ == "__main__":
    main()
