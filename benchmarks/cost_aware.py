"""What ``"bayesian"`` gains in a search that is bounded by time, by knowing how long trainings take.

Functions that return a final value alone, two workers in virtual time, for as long as 15 mean trainings of each.
*aware* is ``"bayesian"`` as ``lagom`` runs it with a ``timeout``; *plain* is the same as it runs it with ``n_trials``,
where an improvement is worth as much however long it takes; *random* is random search. On landscapes of known answers,
and on YAHPO's surrogate of LCBench (:mod:`benchmarks.surrogate`): the data sets that choices may look at, or with
``--test`` those that none did.

    python -m benchmarks.cost_aware [--quick] [--test] [--seeds N] [--curves FOLDER] [--json PATH]

Keys of ``--json``: ``cost.area.TASK.NAME``, mean regret over the time; ``cost.regret.TASK.NAME``, that at the end;
``cost.area_ratio`` of *aware* to *plain* (geometric mean over the tasks), and ``cost.area_ratio.worst``, on the worst
task; ``cost.regret.NAME``, mean over the tasks; ``cost.trials.NAME`` a search; ``cost.cpu_ms.NAME`` a trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import publish
from benchmarks.drive import search
from benchmarks.figures import Score, area, regret
from benchmarks.landscapes import Landscape
from benchmarks.landscapes_made import landscape
from benchmarks.runs import Run, improvements
from benchmarks.surrogate import FOLDER, PREFIX, UNSEEN, has_surrogate, options, surrogate
from benchmarks.tasks import LastStep
from maggy_like import Choice, Float, Integer, SearchSpace
from optimizers import make_optimizer

Array = NDArray[np.float64]

WORKERS, TRAININGS = 2, 15.0
SEEDS, QUICK_SEEDS = 10, 3
MADE = ("dear", "cheap", "models", "even")
TUNED = (3945, 126025, 126026, 126029, 146212, 167104, 167149, 167181, 168331)
METHODS = {"plain": ("bayesian", False), "aware": ("bayesian", True), "random": ("random", False)}


def models() -> Landscape:
    """Three kinds of models with parameters of their own: quick, middling, and up to a hundred times as long."""
    space = SearchSpace(
        kind=Choice(["linear", "forest", "network"]),
        decay=Float(1e-6, 1.0, log=True, when={"kind": "linear"}),
        trees=Integer(10, 1000, log=True, when={"kind": "forest"}),
        depth=Integer(2, 32, log=True, when={"kind": "forest"}),
        width=Integer(16, 1024, log=True, when={"kind": "network"}),
        rate=Float(1e-5, 1.0, log=True, when={"kind": "network"}),
    )

    def train(config: Mapping[str, Any], rng: np.random.Generator) -> tuple[Array, Array]:
        unit = dict(zip(space.dimensions, space.to_unit(config), strict=True))
        if config["kind"] == "linear":
            loss, seconds = 0.25 + 0.3 * (unit["decay"] - 0.4) ** 2, 1.0
        elif config["kind"] == "forest":
            loss, seconds = 0.08 + 0.2 * (1.0 - unit["trees"]) ** 2 + 0.3 * (unit["depth"] - 0.7) ** 2, 0.02
            seconds *= config["trees"]
        else:
            loss, seconds = abs(unit["rate"] - 0.6) + 0.2 * (1.0 - unit["width"]) ** 2, 0.1 * config["width"]
        return np.array([loss]), np.array([seconds * np.exp(0.2 * rng.normal())])

    return Landscape("models", space, train, best=0.0)


def even() -> Landscape:
    """All trainings take about as long, but by chance: there is nothing to gain."""
    names = "abcd"

    def train(config: Mapping[str, Any], rng: np.random.Generator) -> tuple[Array, Array]:
        distances = np.abs(np.array([config[name] for name in names]) - [0.2, 0.5, 0.7, 0.9])
        return np.array([distances @ [1.0, 0.5, 0.3, 0.1]]), np.array([np.exp(0.3 * rng.normal())])

    return Landscape("even", SearchSpace({name: Float(0.0, 1.0) for name in names}), train, best=0.0)


_OWN: dict[str, Callable[[], Landscape]] = {"models": models, "even": even}


def run(name: str, method: str, seed: int, curves: Path) -> Run:
    """One search by one of :data:`METHODS`.

    Example:
        >>> run("even", "aware", 0, CURVES).regret < 0.5
        True
    """
    task = _task(name, curves)
    optimizer, is_timed = METHODS[method]
    horizon = TRAININGS * task.full_seconds
    begin = time.process_time()
    reports = search(make_optimizer(optimizer), task, seed=seed, workers=WORKERS, horizon=horizon, is_timed=is_timed)
    cpu = time.process_time() - begin
    return Run("mf", method, name, seed, "", cpu, len(reports), horizon, improvements(reports, task))


@cache
def _task(name: str, curves: Path) -> LastStep:
    if name.startswith(PREFIX):
        return LastStep(surrogate(name, curves))
    return LastStep(_OWN[name]() if name in _OWN else landscape(name))


def main() -> None:
    """Search and print."""
    arguments = options(__doc__, SEEDS, QUICK_SEEDS).parse_args()
    names = [*MADE, *(f"{PREFIX}{number}" for number in TUNED)]
    if arguments.test:
        names = [f"{PREFIX}{number}" for number in UNSEEN]
    elif arguments.quick:
        names = [*MADE, f"{PREFIX}{TUNED[0]}"]
    if not has_surrogate(arguments.curves):
        print(f"LCBench is left out: it needs onnxruntime, and {FOLDER} in a folder for --curves")
        names = [name for name in names if not name.startswith(PREFIX)]
    seeds = range(arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS))
    runs = {
        (name, method): [run(name, method, seed, arguments.curves) for seed in seeds]
        for name in names
        for method in METHODS
    }
    publish(figures(runs), arguments.json)


def figures(runs: Mapping[tuple[str, str], Sequence[Run]]) -> dict[str, float]:
    """All keys, of runs by task and method, a seed each."""
    made: dict[str, float] = {}
    for (name, method), of in runs.items():
        made[f"cost.area.{name}.{method}"] = _mean(of, area)
        made[f"cost.regret.{name}.{method}"] = _mean(of, regret)
    names = list(dict.fromkeys(name for name, _ in runs))
    ratios = {name: made[f"cost.area.{name}.aware"] / made[f"cost.area.{name}.plain"] for name in names}
    made["cost.area_ratio"] = float(np.exp(np.mean(np.log(list(ratios.values())))))
    made["cost.area_ratio.worst"] = max(ratios.values())
    for method in METHODS:
        of = [each for name in names for each in runs[name, method]]
        made[f"cost.regret.{method}"] = _mean(of, regret)
        made[f"cost.trials.{method}"] = _mean(of, lambda each: float(each.count))
        made[f"cost.cpu_ms.{method}"] = 1e3 * sum(each.cpu for each in of) / sum(each.count for each in of)
    return made


def _mean(runs: Iterable[Run], score: Score) -> float:
    return float(np.mean([score(each) for each in runs]))


if __name__ == "__main__":
    main()
