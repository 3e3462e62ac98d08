"""What a search finds where results are noisy: the same configuration trained again comes out differently.

Full trainings, each by its last step, with normal noise of three tenths of the distance from the best to the median;
100 trials of 4 workers in virtual time. ``asha`` reports each step and stops trials early, and a trial has the same
noise at all steps. On landscapes of our own and data sets of LCBench's surrogate that choices may look at, and with
``--test`` on data sets that are kept apart from tuning. Regret is normalised and that of the loss of the full training
without noise.

    python -m benchmarks.noise [--quick] [--test] [--seeds N] [--curves DIRECTORY] [--json PATH]

Keys: ``noise.best.NAME``, the regret of the trial that reported the lowest loss; ``noise.recommended.NAME``, that of
``result.recommended``; ``noise.within.NAME``, the share of searches in which that is within two standard deviations of
the estimate; ``noise.late.NAME``, the mean regret of the last 40 trials; all also with the task before the name;
``noise.cpu_s.NAME``, a search. Names: ``bayesian``, ``asha``, ``optuna_tpe``, ``random``.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import means, parser, publish
from benchmarks.drive import drive
from benchmarks.lcbench import DIRECTORY
from benchmarks.peers import optuna_tpe
from benchmarks.runs import CAP
from benchmarks.surrogate import PREFIX, UNSEEN
from benchmarks.tables import CURVES
from benchmarks.tasks import LastStep, Task, is_at_hand, task
from maggy_like import simulate
from maggy_like.results.confirmed import recommended_of
from optimizers import Study, make_optimizer

TUNED = ("plateaus", "conditional", "two", "forty", "yahpo-3945", "yahpo-167104", "yahpo-146212")
TEST = tuple(f"{PREFIX}{number}" for number in UNSEEN)
QUICK = ("plateaus", "conditional")
OURS = ("bayesian", "asha", "random")
METHODS = (*OURS, "optuna_tpe")
NOISE, N_TRIALS, LATE, WORKERS = 0.3, 100, 40, 4
SEEDS, QUICK_SEEDS = 10, 2


class Noisy:
    """A task whose losses are regrets with noise, drawn anew for each trial.

    Attributes:
        regrets: Of the full training of each trial that was run, without the noise, in order.
        losses: What was reported of it, or would be in the end.
    """

    def __init__(self, inner: Task, seed: int, *, noise: float = NOISE) -> None:
        self.name, self.space, self.full_seconds = inner.name, inner.space, inner.full_seconds
        self.max_budget = inner.max_budget
        self.regrets: list[float] = []
        self.losses: list[float] = []
        self._luck: dict[bytes, float] = {}
        self._inner, self._noise = inner, noise
        self._rng = np.random.default_rng([zlib.crc32(inner.name.encode()), seed])

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        """A regret with noise, and the seconds of the step."""
        key = self.space.key(config)
        if step == 1:
            self._luck[key] = self._noise * self._rng.normal()
            self.regrets.append(self.true(config, self.max_budget))
            self.losses.append(self.regrets[-1] + self._luck[key])
        return self.true(config, step) + self._luck[key], self._inner(config, step)[1]

    def true(self, config: Mapping[str, Any], step: int) -> float:
        """The regret without noise after a step."""
        return min(float(np.nan_to_num(self._inner.regret(self._inner(config, step)[0]), nan=CAP)), CAP)

    def regret(self, loss: Any) -> Any:
        """A reported loss as it is: it is a regret already."""
        return loss


def run(name: str, method: str, seed: int, curves: Path) -> dict[str, float]:
    """One search, and its figures by the names of the keys.

    Example:
        >>> run("two", "random", 0, CURVES)["best"]
        0.37
    """
    full = task(name, curves)
    noisy = Noisy(full if method == "asha" else LastStep(full), seed)
    if method == "optuna_tpe":
        drive(optuna_tpe(noisy.space, seed), noisy, workers=WORKERS, n_trials=N_TRIALS)
        found = {"best": noisy.regrets[int(np.argmin(noisy.losses))]}
    else:
        study = Study(noisy.space, make_optimizer(method), direction="min", seed=seed, max_budget=noisy.max_budget,
                      n_trials=N_TRIALS)  # fmt: skip
        simulate(study, noisy, workers=WORKERS)
        recommended = recommended_of(study.trials, noisy.space, "loss", "min", study.value_rule)
        assert study.best is not None
        assert recommended is not None
        true = noisy.true(recommended.config, noisy.max_budget)
        found = {
            "best": noisy.true(study.best.config, noisy.max_budget),
            "recommended": true,
            "within": float(abs(recommended.mean - true) <= 2.0 * recommended.std),
        }
    return found | {"late": float(np.mean(noisy.regrets[-LATE:]))}


def main() -> None:
    """Search and print."""
    options = parser(__doc__)
    options.add_argument("--test", action="store_true", help="the data sets that are kept apart from tuning")
    options.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS}, or {QUICK_SEEDS} with --quick")
    options.add_argument("--curves", type=Path, default=CURVES, metavar="DIRECTORY", help=f"where {DIRECTORY} lies")
    arguments = options.parse_args()
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    warnings.simplefilter("ignore")  # of Optuna, which is taken as it is
    names = TEST if arguments.test else QUICK if arguments.quick else TUNED
    wanted = [name for name in names if is_at_hand(name, arguments.curves)]
    if len(wanted) < len(names):
        print(f"LCBench is left out: it needs onnxruntime, and {DIRECTORY} in a directory for --curves")
    figures: dict[str, float] = {}
    for method in METHODS:
        of_tasks = []
        for name in wanted:
            begin = time.process_time()
            found = means(run(name, method, seed, arguments.curves) for seed in range(seeds))
            of_tasks.append({**found, "cpu_s": (time.process_time() - begin) / seeds})
            figures |= {f"noise.{key}.{name}.{method}": value for key, value in found.items()}
        figures |= {f"noise.{key}.{method}": value for key, value in means(of_tasks).items()}
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
