"""The pictures of regret over time for the documentation, from the finished runs of :mod:`benchmarks.quality`.

    python -m benchmarks.plot_quality [FOLDER]

Writes ``regret_sf.png`` (over the trials that ended) and ``regret_mf.png`` (over the time): for each method the mean
over the seeds, and around it where half of the seeds lie, on each task shown. Default folder: ``docs/images``.
"""

from __future__ import annotations

import argparse
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
FLOOR = 1e-3
"""A regret of 0 has no place on a log axis."""
SHOWN = {
    "sf": (*TUNED["sf"], *HELD_OUT["sf"]),
    "mf": (*SMOOTH, "lcbench-3945", "lcbench-168330", "diverging", "crossing", "forty"),
}
COLORS = {
    "bayesian": "#c1272d",
    "asha": "#c1272d",
    "optuna_gp": "#0072b2",
    "optuna_tpe": "#56b4e9",
    "optuna_sh_tpe": "#56b4e9",
    "skopt_gp": "#009e73",
    "syne_cqr": "#009e73",
    "syne_bohb": "#e69f00",
    "mobster": "#9467bd",
    "asha_random": "#444444",
    "random": "#aaaaaa",
}


def main() -> None:
    """Draw both pictures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, nargs="?", default=IMAGES)
    folder: Path = options.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    runs = [run for run in Store(RESULTS) if counts(run)]
    kinds: tuple[Kind, ...] = ("sf", "mf")
    for kind in kinds:
        _draw(Field.of(runs, kind, SHOWN[kind], range(SEEDS)), folder / f"regret_{kind}.png")


def _draw(field: Field, path: Path) -> None:
    columns = len(field.tables) // 2
    figure, axes = plt.subplots(2, columns, figsize=(2.6 * columns + 0.6, 5.2), sharex=True, sharey=True)
    for axis, table in zip(axes.flat, field.tables, strict=True):
        for name, color in COLORS.items():
            if name in field.rivals:
                _line(axis, field, name, table, color)
        axis.set_title(table, fontsize=9)
        axis.set_yscale("log")
        axis.set_ylim(FLOOR, 1.0)
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.tick_params(labelsize=8)
    horizon = "trials" if field.kind == "sf" else "time, in full trainings"
    figure.supxlabel(horizon, fontsize=9)
    figure.supylabel("normalised regret", fontsize=9)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 0.95))
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _line(axis: Axes, field: Field, name: str, table: str, color: str) -> None:
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
