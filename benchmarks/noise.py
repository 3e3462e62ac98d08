"""What a search finds where results are noisy: the same configuration trained again comes out differently.

Full trainings, each by its last step, with normal noise of three tenths of the distance from the best to the median;
100 trials of 4 workers in virtual time. On landscapes of our own and data sets of LCBench's surrogate that choices may
look at, and with ``--test`` on data sets that are kept apart from tuning. Regret is normalised and that of the loss
without noise.

    python -m benchmarks.noise [--quick] [--test] [--seeds N] [--curves FOLDER] [--json PATH]

Keys: ``noise.best.NAME``, the regret of the trial that reported the lowest loss; ``noise.late.NAME``, the mean regret
of the last 40 trials; both also as ``noise.best.TASK.NAME`` and ``noise.late.TASK.NAME``; ``noise.cpu_s.NAME``,
a search. Names: ``bayesian``, ``optuna_tpe``, ``random``.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import publish
from benchmarks.drive import drive, search
from benchmarks.peers import optuna_tpe
from benchmarks.runs import CAP
from benchmarks.surrogate import FOLDER, PREFIX, UNSEEN, options
from benchmarks.tasks import LastStep, Task, is_at_hand, task
from optimizers import BayesianSearch, RandomSearch

TUNED = ("plateaus", "conditional", "two", "forty", "yahpo-3945", "yahpo-167104", "yahpo-146212")
TEST = tuple(f"{PREFIX}{number}" for number in UNSEEN)
QUICK = ("plateaus", "conditional")
METHODS = ("bayesian", "optuna_tpe", "random")
NOISE, N_TRIALS, LATE, WORKERS = 0.3, 100, 40, 4
SEEDS, QUICK_SEEDS = 10, 2


class Noisy:
    """A task of one step whose losses are regrets with noise, drawn anew for each trial.

    Attributes:
        regrets: Of each trial that was run, without the noise, in order.
        losses: What was reported of it.
    """

    max_budget = 1

    def __init__(self, inner: Task, seed: int, *, noise: float = NOISE) -> None:
        self.name, self.space, self.full_seconds = inner.name, inner.space, inner.full_seconds
        self.regrets: list[float] = []
        self.losses: list[float] = []
        self._inner, self._noise = inner, noise
        self._rng = np.random.default_rng([zlib.crc32(inner.name.encode()), seed])

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        """A regret with noise, and the seconds of the training."""
        loss, seconds = self._inner(config, step)
        self.regrets.append(min(float(self._inner.regret(loss)), CAP))
        self.losses.append(self.regrets[-1] + self._noise * self._rng.normal())
        return self.losses[-1], seconds

    def regret(self, loss: Any) -> Any:
        """A reported loss as it is: it is a regret already."""
        return loss


def run(name: str, method: str, seed: int, curves: Path) -> tuple[float, float]:
    """One search: the regret of the trial that reported the lowest loss, and the mean of the last trials.

    Example:
        >>> run("two", "random", 0, CURVES)
        (0.37, 1.49)
    """
    noisy = Noisy(LastStep(task(name, curves)), seed)
    if method == "optuna_tpe":
        drive(optuna_tpe(noisy.space, seed), noisy, workers=WORKERS, n_trials=N_TRIALS)
    else:
        optimizer = BayesianSearch() if method == "bayesian" else RandomSearch()
        search(optimizer, noisy, seed=seed, workers=WORKERS, n_trials=N_TRIALS)
    return noisy.regrets[int(np.argmin(noisy.losses))], float(np.mean(noisy.regrets[-LATE:]))


def main() -> None:
    """Search and print."""
    arguments = options(__doc__, SEEDS, QUICK_SEEDS).parse_args()
    warnings.simplefilter("ignore")  # of Optuna, which is taken as it is
    names = TEST if arguments.test else QUICK if arguments.quick else TUNED
    wanted = [name for name in names if is_at_hand(name, arguments.curves)]
    if len(wanted) < len(names):
        print(f"LCBench is left out: it needs onnxruntime, and {FOLDER} in a folder for --curves")
    figures: dict[str, float] = {}
    means: dict[str, list[float]] = defaultdict(list)
    for name in wanted:
        for method in METHODS:
            begin = time.process_time()
            seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
            found = np.mean([run(name, method, seed, arguments.curves) for seed in range(seeds)], axis=0)
            means[f"noise.cpu_s.{method}"].append((time.process_time() - begin) / seeds)
            for key, value in zip(("best", "late"), found.tolist(), strict=True):
                figures[f"noise.{key}.{name}.{method}"] = value
                means[f"noise.{key}.{method}"].append(value)
    publish(figures | {key: float(np.mean(values)) for key, values in means.items()}, arguments.json)


if __name__ == "__main__":
    main()
