"""Population-based training where the best learning rate falls as a training goes on, and the best schedule is known.

The training is that of :mod:`benchmarks.schedule_task`, 50 steps long. 16 workers in virtual time, for as long as one
training takes. The loss is 0 with the best schedule and 1 where nothing is won. Random search trains 16 configurations
to the end; its limit is the best constant learning rate.

With an interpreter that has Ray (``pip install "ray[tune]"``), Ray Tune's population-based training searches the same
with the same seeds (:mod:`benchmarks.schedule_ray`): 16 trainings, an interval of 5 steps, a quantile of a quarter.

    python -m benchmarks.schedule [--peers-python PATH] [--seeds N] [--quick] [--json PATH]

Keys: ``schedule.loss.NAME``, means over the seeds (10), with ``schedule.low.NAME`` and ``schedule.high.NAME`` (95 %, a
bootstrap); ``schedule.loss.best_constant``, what no search of constants can pass. Names: ``pbt`` and ``random``.
``pbt.regret.NAME.STEP``: how far the least loss so far is above that of the best schedule, after so many steps of all
trainings; ``pbt.regret.NAME``, at the end, and ``pbt.area.NAME``, its mean over the steps, each with ``.low`` and
``.high`` as above; ``pbt.cpu_s.NAME``, CPU seconds of a search, Ray's with all that it starts. Names: ``ours`` and
``ray``. ``pbt.wins``: the seeds with which ours ends lower.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import parser, publish
from benchmarks.overhead import accounted
from benchmarks.schedule_task import DECAY, FIRST, INTERVAL, LAST, LR, STEPS, WORKERS, least, train
from maggy_like import Float, simulate
from optimizers import PBT, Optimizer, RandomSearch, Study

Array = NDArray[np.float64]

SPACE = {"lr": Float(*LR, log=True), "decay": Float(0.0, 1.0)}
LOOKS = range(STEPS // 5, STEPS + 1, STEPS // 5)
BOOTSTRAPS = 1000


def best_constant() -> float:
    """The loss of the best learning rate that stays the same."""

    def loss(lr: float) -> float:
        won = 0.0
        for step in range(1, STEPS + 1):
            value, _, won = train({"lr": lr, "decay": DECAY}, step, won)
        return value

    return min(loss(float(lr)) for lr in np.logspace(LAST, FIRST, 301))


def regrets(losses: Iterable[tuple[int, float]]) -> Array:
    """How far the least loss up to each step is above that of the best schedule, from all steps and their losses."""
    found = np.full(STEPS, np.inf)
    for step, loss in losses:
        found[step - 1] = min(found[step - 1], loss)
    best = np.array([least(step) for step in range(1, STEPS + 1)])
    return np.asarray(np.minimum.accumulate(found) - best, dtype=np.float64)


def ours(optimizer: Optimizer, seed: int) -> tuple[Array, float]:
    """The regrets of a search that takes as long as one training, and its CPU seconds."""
    began = time.process_time()
    study = Study(SPACE, optimizer, direction="min", seed=seed, max_budget=STEPS)
    simulate(study, train, workers=WORKERS, state=0.0, horizon=STEPS)
    used = time.process_time() - began
    curves = [trial.curve for trial in study.trials]
    return regrets(pair for curve in curves for pair in zip(curve.steps, curve.values, strict=True)), used


def ray(python: str, seed: int) -> tuple[Array, float]:
    """The same of Ray's search."""
    with tempfile.TemporaryDirectory() as folder:
        used = accounted([python, "-m", "benchmarks.schedule_ray", str(seed), folder])
        lines = Path(folder, "steps").read_text().splitlines()
    return regrets((int(step), float(loss)) for step, loss in map(str.split, lines)), used


def interval(values: Array) -> tuple[float, float]:
    """95 % of the means of samples drawn anew."""
    drawn = np.random.default_rng(0).choice(values, (BOOTSTRAPS, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--peers-python", metavar="PATH", help="an interpreter with Ray; without it Ray is left out")
    options.add_argument("--seeds", type=int, default=None, metavar="N", help="how many")
    arguments = options.parse_args()
    seeds = range(arguments.seeds or (3 if arguments.quick else 10))
    searches: dict[str, Callable[[int], tuple[Array, float]]] = {
        "pbt": lambda seed: ours(PBT(population=WORKERS, interval=INTERVAL), seed),
        "random": lambda seed: ours(RandomSearch(), seed),
    }
    if arguments.peers_python is not None:
        searches["ray"] = lambda seed: ray(arguments.peers_python, seed)
    figures = {"schedule.loss.best_constant": best_constant()}
    ends = {}
    for name, search in searches.items():
        found = []
        for seed in seeds:
            found.append(search(seed))
            print(f"{name}, seed {seed}: {found[-1][0][-1]:.3f}, {found[-1][1]:.1f} CPU s", file=sys.stderr)
        curves, used = np.array([curve for curve, _ in found]), [seconds for _, seconds in found]
        ends[name] = curves[:, -1]
        if name != "ray":
            low, high = interval(ends[name])
            figures |= {f"schedule.loss.{name}": float(ends[name].mean())}
            figures |= {f"schedule.low.{name}": low, f"schedule.high.{name}": high}
        if name != "random":
            who = "ours" if name == "pbt" else name
            figures |= {f"pbt.regret.{who}.{step}": float(curves[:, step - 1].mean()) for step in LOOKS}
            for what, values in (("regret", ends[name]), ("area", curves.mean(axis=1))):
                low, high = interval(values)
                figures |= {f"pbt.{what}.{who}": float(values.mean())}
                figures |= {f"pbt.{what}.{who}.low": low, f"pbt.{what}.{who}.high": high}
            figures[f"pbt.cpu_s.{who}"] = float(np.mean(used))
    if "ray" in ends:
        figures["pbt.wins"] = float((ends["pbt"] < ends["ray"]).sum())
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
