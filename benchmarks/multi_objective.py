"""How much of the front searches of several objectives find, ours and other libraries', in virtual time.

4 workers, 100 trainings, on the problems of :mod:`benchmarks.fronts`: hypervolume in parts of the front's. Finished
runs are kept, as :mod:`benchmarks.quality` keeps its own: one of ours counts if its optimizer still does the same.

    python -m benchmarks.multi_objective [--quick] [--json PATH] [--only NAMES] [--seeds N] [--curves FOLDER]
                                         [--results PATH] [--markdown]

Keys of ``--json``: ``multi.hypervolume_ratio``: ours at the end over that of Optuna's NSGA-II, in the better of two
populations (20, and its default of 50), the geometric mean over the problems of the means over the seeds;
``multi.ratio.NAME`` over the other methods, with ``multi.ratio_low.NAME`` and ``multi.ratio_high.NAME`` (95 %, a
bootstrap over the problems and over the seeds of each); ``multi.hypervolume.NAME`` at the end and ``multi.area.NAME``
over the trials; ``multi.behind.NAME``: the number of problems on which ours has less than that one;
``multi.cpu_s.NAME``. A method that has runs on some problems alone is compared on these, and has fewer of
``multi.problems.NAME``.
"""

from __future__ import annotations

import hashlib
import heapq
import importlib.metadata
import json
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import parser, save
from benchmarks.fronts import MADE, Problem, is_at_hand, problem
from benchmarks.peers_multi_objective import BotorchMany, OurSearch, Peer, optuna_sampler
from benchmarks.tables import CURVES
from optimizers import BayesianSearch, RandomSearch

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "multi_objective.jsonl"
PROBLEMS = (*MADE, "yahpo-126026", "yahpo-3945")
QUICK = ("zdt1", "dtlz2-three", "constr", "mixed")
WORKERS, N_TRIALS = 4, 100
SEEDS, QUICK_SEEDS = 10, 3
BEST, BASE = "bayesian", ("nsga2", "nsga2_20")
BOOTSTRAPS = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """What a search came to; ``hypervolumes`` after each trial, shape (trials,)."""

    method: str
    problem: str
    seed: int
    code: str
    cpu: float
    hypervolumes: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells a run from the others."""
        return self.method, self.problem, self.seed


@dataclass(frozen=True, slots=True)
class Method:
    """Something that searches; of a library, ``package`` is its distribution. What takes minutes runs where named."""

    name: str
    make: Callable[[Problem, int], Peer]
    package: str = ""
    quick: bool = True

    @property
    def code(self) -> str | None:
        """What a run would be made by; None if it is not installed."""
        if not self.package:
            return f"optimizers {_behaviour(self)}"
        try:
            return f"{self.package} {importlib.metadata.version(self.package)}"
        except importlib.metadata.PackageNotFoundError:
            return None


METHODS = (
    Method("random", lambda made, seed: OurSearch(made, RandomSearch(), seed)),
    Method(BEST, lambda made, seed: OurSearch(made, BayesianSearch(), seed)),
    Method("nsga2", lambda made, seed: optuna_sampler("nsga2", made, seed), "optuna"),
    Method("nsga2_20", lambda made, seed: optuna_sampler("nsga2_20", made, seed), "optuna"),
    Method("tpe", lambda made, seed: optuna_sampler("tpe", made, seed), "optuna"),
    Method("gp", lambda made, seed: optuna_sampler("gp", made, seed), "optuna", quick=False),
    Method("qnehvi", BotorchMany, "botorch", quick=False),
)


def search(peer: Peer, made: Problem, n_trials: int = N_TRIALS) -> list[tuple[Any, tuple[float, ...]]]:
    """Configurations and their losses, in the order in which the trainings end; a free worker gets work at once."""
    running: list[tuple[float, int]] = []
    configs: list[Any] = []
    ended = []

    def start(now: float) -> None:
        if len(configs) < n_trials:
            configs.append(peer.ask(len(configs)))
            heapq.heappush(running, (now + made.seconds(configs[-1]), len(configs) - 1))

    for _ in range(WORKERS):
        start(0.0)
    while running:
        now, trial = heapq.heappop(running)
        losses = made.losses(configs[trial])
        ended.append((configs[trial], losses))
        peer.tell(trial, losses)
        start(now)
    return ended


def run(method: Method, made: Problem, seed: int, code: str) -> Run:
    """One search; what breaks a constraint wins nothing."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that are taken as they are
        ended = search(method.make(made, seed), made)
    cpu = round(time.process_time() - start, 2)
    rows = np.array([losses if made.space.allows(config) else [np.inf] * made.n_objectives for config, losses in ended])
    curve = tuple(round(made.share(rows[: n + 1]), 5) for n in range(len(rows)))
    return Run(method.name, made.name, seed, code, cpu, curve)


@cache
def _behaviour(method: Method) -> str:
    made = problem("mixed", CURVES)
    seen = [made.space.to_unit(config).round(6).tolist() for config, _ in search(method.make(made, 1), made, 40)]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:12]


def load(path: Path) -> dict[tuple[str, str, int], Run]:
    """The finished runs that count: those of other libraries, and of ours those that would come out the same."""
    codes = {method.name: method.code for method in METHODS if not method.package}
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [Run(**{**entry, "hypervolumes": tuple(entry["hypervolumes"])}) for entry in map(json.loads, lines)]
    return {made.key: made for made in runs if codes.get(made.method, made.code) == made.code}


def store(path: Path, runs: Iterable[Run]) -> None:
    """Write them all, sorted."""
    lines = (json.dumps(asdict(made), separators=(",", ":")) for made in sorted(runs, key=lambda made: made.key))
    path.write_text("".join(f"{line}\n" for line in lines))


def figures(runs: dict[tuple[str, str, int], Run], problems: tuple[str, ...]) -> dict[str, float]:
    """All keys."""
    ends: dict[str, dict[str, Array]] = {}
    made: dict[str, float] = {}
    for method in METHODS:
        cells = {name: [each for each in runs.values() if each.key[:2] == (method.name, name)] for name in problems}
        cells = {name: cell for name, cell in cells.items() if cell}
        if not cells:
            continue
        ends[method.name] = {name: np.array([each.hypervolumes[-1] for each in cell]) for name, cell in cells.items()}
        areas = [np.mean([each.hypervolumes for each in cell]) for cell in cells.values()]
        made[f"multi.hypervolume.{method.name}"] = float(np.mean([each.mean() for each in ends[method.name].values()]))
        made[f"multi.area.{method.name}"] = float(np.mean(areas))
        made[f"multi.cpu_s.{method.name}"] = float(np.mean([each.cpu for cell in cells.values() for each in cell]))
        made[f"multi.runs.{method.name}"] = sum(map(len, cells.values()))
        made[f"multi.problems.{method.name}"] = len(cells)
    if BEST not in ends:
        return made
    for name in [name for name in ends if name != BEST]:
        ratio, low, high = _ratio(ends[BEST], [ends[name]])
        made |= {f"multi.ratio.{name}": ratio, f"multi.ratio_low.{name}": low, f"multi.ratio_high.{name}": high}
        behind = [its.mean() > ends[BEST][each].mean() for each, its in ends[name].items() if each in ends[BEST]]
        made[f"multi.behind.{name}"] = int(sum(behind))
    if bases := [ends[name] for name in BASE if name in ends]:
        ratio, low, high = _ratio(ends[BEST], bases)
        made |= {"multi.hypervolume_ratio": ratio, "multi.hypervolume_ratio_low": low}
        made["multi.hypervolume_ratio_high"] = high
    return made


def _ratio(ours: dict[str, Array], bases: list[dict[str, Array]]) -> tuple[float, float, float]:
    """Ours over the best of the others on each problem that all have: geometric mean, and a 95 % interval."""
    names = [name for name in ours if all(name in base for base in bases)]

    def geometric(draw: Callable[[Array], Array], chosen: Iterable[str]) -> float:
        logs = [np.log(draw(ours[name]).mean() / max(draw(base[name]).mean() for base in bases)) for name in chosen]
        return float(np.exp(np.mean(logs)))

    rng = np.random.default_rng(0)
    drawn = [
        geometric(lambda cell: rng.choice(cell, len(cell)), rng.choice(names, len(names))) for _ in range(BOOTSTRAPS)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return geometric(lambda cell: cell, names), float(low), float(high)


def main() -> None:
    """Run what is missing, and print."""
    options = parser(__doc__)
    options.add_argument("--only", metavar="NAMES", help="run these alone (with commas), slow ones too")
    options.add_argument("--problems", metavar="NAMES", help="on these alone (with commas)")
    options.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS}, or {QUICK_SEEDS} with --quick")
    options.add_argument("--curves", type=Path, default=CURVES, metavar="FOLDER", help="where the surrogate lies")
    options.add_argument("--results", type=Path, default=RESULTS, metavar="PATH", help="finished runs")
    arguments = options.parse_args()
    only = set(arguments.only.split(",")) if arguments.only else set()
    problems = tuple(arguments.problems.split(",")) if arguments.problems else QUICK if arguments.quick else PROBLEMS
    seeds = range(arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS))
    runs = load(arguments.results)
    for method in METHODS:
        if (only and method.name not in only) or (not only and not method.quick) or (code := method.code) is None:
            continue
        for name in problems:
            missing = [seed for seed in seeds if (method.name, name, seed) not in runs]
            if not missing or not is_at_hand(name, arguments.curves):
                continue
            for seed in missing:
                made = run(method, problem(name, arguments.curves), seed, code)
                runs[made.key] = made
            store(arguments.results, [*(load(arguments.results) | runs).values()])
            print(f"{method.name} on {name}: {len(missing)} runs", flush=True)
    shown = tuple(name for name in problems if any(key[1] == name for key in runs))
    chosen = {key: made for key, made in runs.items() if key[1] in shown and key[2] in seeds}
    found = figures(chosen, shown)
    _print(chosen, found, shown)
    save(found, arguments.json)


def _print(runs: dict[tuple[str, str, int], Run], found: dict[str, float], problems: tuple[str, ...]) -> None:
    """Two tables in Markdown: methods, and hypervolumes by problem."""
    names = [name.rpartition(".")[2] for name in found if name.startswith("multi.runs.")]
    names.sort(key=lambda name: -found[f"multi.hypervolume.{name}"])
    print("| method | hypervolume | area | ours over it | 95 % | ours behind | CPU s | runs |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        kinds = ("hypervolume", "area", "ratio", "ratio_low", "ratio_high", "behind", "cpu_s", "runs")
        shown = [f"{found[key]:.3g}" if (key := f"multi.{kind}.{name}") in found else "" for kind in kinds]
        print("| " + " | ".join([name, *shown[:3], f"{shown[3]} to {shown[4]}", *shown[5:]]) + " |")
    print(f"\n| hypervolume | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for each in problems:
        cells = [[made.hypervolumes[-1] for made in runs.values() if made.key[:2] == (name, each)] for name in names]
        shown = [f"{np.mean(cell):.3f} ({len(cell)})" if cell else "" for cell in cells]
        print(f"| {each} | " + " | ".join(shown) + " |")
    for key in ("hypervolume_ratio", "hypervolume_ratio_low", "hypervolume_ratio_high"):
        if f"multi.{key}" in found:
            print(f"multi.{key}  {found[f'multi.{key}']:.3f}")


if __name__ == "__main__":
    main()
