"""The pictures of the documentation: of :mod:`benchmarks.bsp` and :mod:`benchmarks.scale`, and of the kept searches.

    python -m benchmarks.plots [--bsp JSON] [--scale JSON] [--quality] [--directory DIRECTORY]

``--bsp`` and ``--scale`` take what these have written with ``--json``, and draw ``time_saved.png`` (in parts of the
time of bulk-synchronous stages, by the number of workers) and ``scale.png`` (how long a worker waits for its next
trial, and what share of a core the driver takes; with 100, 300, 1000, 2000 and 4000 workers). ``--quality`` draws
``regret_sf.png`` (over the trials that ended) and ``regret_mf.png`` (over the time): for each method the mean over the
seeds, and around it where half of the seeds lie, on each task shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.figures import Field
from benchmarks.methods import HORIZON, N_TRIALS, counts
from benchmarks.quality import BEST, HELD_OUT, PLAIN, RESULTS, SEEDS, SMOOTH, TUNED
from benchmarks.runs import Array, Kind, Store, grid

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BLUE, RED = "#0072b2", "#c1272d"
FLOOR = 1e-3
"""A regret of 0 has no place on a log axis."""
SHOWN = {
    "sf": (*TUNED["sf"], *HELD_OUT["sf"]),
    "mf": (*SMOOTH, "lcbench-3945", "lcbench-168330", "diverging", "crossing", "forty"),
}
COLORS = {
    **dict.fromkeys(("bayesian", "asha"), RED),
    "optuna_gp": BLUE,
    **dict.fromkeys(("optuna_tpe", "optuna_sh_tpe"), "#56b4e9"),
    "skopt_gp": "#009e73",
    "syne_bohb": "#e69f00",
    "mobster": "#9467bd",
    "asha_random": "#444444",
    "random": "#aaaaaa",
}


def main() -> None:
    """Draw what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bsp", type=Path, metavar="JSON", help="what benchmarks.bsp has written")
    options.add_argument("--scale", type=Path, metavar="JSON", help="what benchmarks.scale has written")
    options.add_argument("--quality", action="store_true", help="the regret of the kept searches")
    options.add_argument("--directory", type=Path, default=IMAGES)
    arguments = options.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    if arguments.bsp is not None:
        draw_time_saved(json.loads(arguments.bsp.read_text()), arguments.directory / "time_saved.png")
    if arguments.scale is not None:
        draw_scale(json.loads(arguments.scale.read_text()), arguments.directory / "scale.png")
    if arguments.quality:
        runs = [run for run in Store(RESULTS) if counts(run)]
        kinds: tuple[Kind, ...] = ("sf", "mf")
        for kind in kinds:
            draw_regret(Field.of(runs, kind, SHOWN[kind], range(SEEDS)), arguments.directory / f"regret_{kind}.png")


# -- by the number of workers ---------------------------------------------------------------------


def by_workers(figures: Mapping[str, float], key: str) -> tuple[list[int], list[float]]:
    """Numbers of workers, rising, and the figure called ``key`` for each.

    Example:
        >>> by_workers({"join_s.1000": 1.0, "join_s.100": 0.2}, "join_s")
        ([100, 1000], [0.2, 1.0])
    """
    parts = [(*name.rpartition("."), value) for name, value in figures.items()]
    found = {int(number): value for known, _, number, value in parts if known == key and number.isdigit()}
    return sorted(found), [found[number] for number in sorted(found)]


def draw_time_saved(figures: Mapping[str, float], path: Path) -> None:
    """The share of the time of stages that asynchrony saves, and early stopping with it."""
    figure, axis = plt.subplots(figsize=(6.0, 3.2))
    shares = {name: 100.0 * share for name, share in figures.items()}
    _line(axis, shares, "time_saved.early_stopping", RED, "asynchronous, stopped early")
    _line(axis, shares, "time_saved.async", BLUE, "asynchronous")
    axis.set_ylim(0, 100)
    axis.set_ylabel("less time than in stages, %")
    axis.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def draw_scale(figures: Mapping[str, float], path: Path) -> None:
    """What a worker waits for its next trial, and the driver's load."""
    figure, (waits, load) = plt.subplots(1, 2, figsize=(8.5, 3.2))
    _line(waits, figures, "dispatch_p99_ms", RED, "99th percentile")
    _line(waits, figures, "dispatch_median_ms", BLUE, "median")
    waits.set_ylim(bottom=0)
    waits.set_ylabel("wait for the next trial, ms")
    waits.legend(frameon=False, fontsize=9)
    _line(load, {name: 100.0 * value for name, value in figures.items()}, "driver_load", BLUE)
    load.set_ylim(0, 100)
    load.set_ylabel("driver's thread, % of a core")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _line(axis: Axes, figures: Mapping[str, float], key: str, color: str, label: str | None = None) -> None:
    """A figure over the workers, on a log scale with each of their numbers."""
    workers, found = by_workers(figures, key)
    axis.plot(workers, found, "o-", color=color, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(workers, [f"{number:,}" for number in workers])
    axis.set_xlabel("workers")
    axis.spines[["top", "right"]].set_visible(False)


# -- regret over time -----------------------------------------------------------------------------


def draw_regret(field: Field, path: Path) -> None:
    """The regret of each method on each task."""
    columns = len(field.tables) // 2
    figure, axes = plt.subplots(2, columns, figsize=(2.6 * columns + 0.6, 5.2), sharex=True, sharey=True)
    for axis, table in zip(axes.flat, field.tables, strict=True):
        for name, color in COLORS.items():
            if name in field.rivals:
                _curve(axis, field, name, table, color)
        axis.set_title(table, fontsize=9)
        axis.set_yscale("log")
        axis.set_ylim(FLOOR, 1.0)
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.tick_params(labelsize=8)
    figure.supxlabel("trials" if field.kind == "sf" else "time, in full trainings", fontsize=9)
    figure.supylabel("normalised regret", fontsize=9)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 0.95))
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _curve(axis: Axes, field: Field, name: str, table: str, color: str) -> None:
    x, curves = _curves(field, name, table)
    own = name in (*BEST.values(), PLAIN)
    low, high = np.percentile(curves, [25, 75], axis=0)
    axis.fill_between(x, np.maximum(low, FLOOR), np.maximum(high, FLOOR), color=color, alpha=0.12, linewidth=0)
    mean = np.maximum(curves.mean(axis=0), FLOOR)
    axis.plot(x, mean, color=color, linewidth=1.8 if own else 1.1, label=name, zorder=3 if own else 2)


def _curves(field: Field, name: str, table: str) -> tuple[Array, Array]:
    """Where the curves are looked at, shape (n,), and the curves, shape (seeds, n)."""
    if field.kind == "mf":
        horizon = next(run.end for (of, _), run in field.runs[name].items() if of == table)
        return grid(HORIZON), field.curves(name, table, horizon)
    curves = [run.by_report() for (of, _), run in field.runs[name].items() if of == table]
    return np.arange(1.0, N_TRIALS + 1.0), np.array(curves)


if __name__ == "__main__":
    main()
