"""Pictures of :mod:`benchmarks.bsp` and :mod:`benchmarks.scale` for the documentation, from the figures of their runs.

    python -m benchmarks.bsp --json bsp.json
    python -m benchmarks.scale --workers 100 300 1000 2000 4000 --json scale.json
    python -m benchmarks.plot_performance bsp.json scale.json [--folder FOLDER]

Writes ``time_saved.png`` (in parts of the time of bulk-synchronous stages, by the number of workers) and ``scale.png``
(how long a worker waits for its next trial, and what share of a core the driver takes) to ``docs/images``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BLUE, RED = "#0072b2", "#c1272d"


def main() -> None:
    """Draw both pictures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("bsp", type=Path, help="what benchmarks.bsp has written with --json")
    options.add_argument("scale", type=Path, help="what benchmarks.scale has written with --json")
    options.add_argument("--folder", type=Path, default=IMAGES)
    arguments = options.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw_time_saved(json.loads(arguments.bsp.read_text()), arguments.folder / "time_saved.png")
    draw_scale(json.loads(arguments.scale.read_text()), arguments.folder / "scale.png")


def by_workers(figures: Mapping[str, float], key: str) -> tuple[list[int], list[float]]:
    """Numbers of workers, rising, and the figure called ``key`` for each.

    Example:
        >>> by_workers({"join_s.1000": 1.0, "join_s.100": 0.2}, "join_s")
        ([100, 1000], [0.2, 1.0])
    """
    found = {
        int(number): value
        for name, value in figures.items()
        for known, _, number in [name.rpartition(".")]
        if known == key and number.isdigit()
    }
    return sorted(found), [found[number] for number in sorted(found)]


def draw_time_saved(figures: Mapping[str, float], path: Path) -> None:
    """The share of the time of stages that asynchrony saves, and early stopping with it."""
    figure, axis = plt.subplots(figsize=(6.0, 3.2))
    kinds = {"early_stopping": ("asynchronous, stopped early", RED), "async": ("asynchronous", BLUE)}
    for kind, (label, color) in kinds.items():
        workers, saved = by_workers(figures, f"time_saved.{kind}")
        axis.plot(workers, [100.0 * share for share in saved], "o-", color=color, label=label)
    axis.set_ylim(0, 100)
    axis.set_ylabel("less time than in stages, %")
    _finish(axis, workers)
    axis.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def draw_scale(figures: Mapping[str, float], path: Path) -> None:
    """What a worker waits for its next trial, and the driver's load."""
    figure, (waits, load) = plt.subplots(1, 2, figsize=(8.5, 3.2))
    for key, label, color in (("p99", "99th percentile", RED), ("median", "median", BLUE)):
        workers, found = by_workers(figures, f"dispatch_{key}_ms")
        waits.plot(workers, found, "o-", color=color, label=label)
    waits.set_ylim(bottom=0)
    waits.set_ylabel("wait for the next trial, ms")
    waits.legend(frameon=False, fontsize=9)
    workers, found = by_workers(figures, "driver_load")
    load.plot(workers, [100.0 * share for share in found], "o-", color=BLUE)
    load.set_ylim(0, 100)
    load.set_ylabel("driver's thread, % of a core")
    for axis in (waits, load):
        _finish(axis, workers)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _finish(axis: Axes, workers: list[int]) -> None:
    """The axis of the workers, on a log scale, with each number."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(workers, [f"{number:,}" for number in workers])
    axis.set_xlabel("workers")
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
