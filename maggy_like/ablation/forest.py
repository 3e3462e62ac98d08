"""A forest plot: the differences of a study under each other, each with its interval."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

from maggy_like.ablation.comparisons import Comparisons, Row
from maggy_like.ablation.text import difference_text, p_text
from maggy_like.display.text import clean
from maggy_like.errors import UserError

WORSE, BETTER, OPEN = "#b2182b", "#2166ac", "#777777"
"""Colours that people who do not see all of them tell apart."""

_LONGEST = 60  # characters of a name
_WIDEST = 4.0  # times the largest difference: intervals that reach further are cut, with an arrow


def plot(ablation: Comparisons, path: str | Path) -> None:
    """Draw it; see :meth:`~maggy_like.ablation.outcome.Ablation.plot`."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("plot() needs matplotlib; install it with: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = ablation.rows
    reach = reach_of(rows)
    names = [_plain(row.component) for row in rows]
    longest = max(map(len, names))
    figure = Figure(figsize=(6.2 + 0.075 * longest, 1.5 + 0.34 * len(rows)), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axvline(0.0, color="black", linewidth=0.8)
    for place, row in enumerate(rows):
        colour = colour_of(row)
        low, high = max(row.low, -reach), min(row.high, reach)
        if math.isfinite(row.low) or math.isfinite(row.high):
            axes.plot([low, high], [place, place], color=colour, linewidth=1.8, solid_capstyle="butt")
        for end, is_cut, marker in ((low, row.low < -reach, "<"), (high, row.high > reach, ">")):
            if is_cut and math.isfinite(end) and row.p is not None:
                axes.plot([end], [place], marker=marker, color=colour, markersize=5, clip_on=False)
        if math.isfinite(row.difference):
            face = colour if row.p is not None else "white"
            axes.plot([row.difference], [place], marker="s", color=colour, markerfacecolor=face, markersize=6)
        said = (difference_text(row), f"p {p_text(row.p).replace('<', '< ')}" if row.p is not None else "not tested")
        for words, offset in zip(said, (8, 60), strict=True):
            axes.annotate(
                words,
                (1.0, place),
                xytext=(offset, 0),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                color=colour,
                annotation_clip=False,
                fontsize=9,
            )
    axes.set_yticks(range(len(rows)), names, parse_math=False)  # a dollar is no formula
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-reach * 1.04, reach * 1.04)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    worse, better = ("left", "right") if ablation.direction == "max" else ("right", "left")
    for side, words, colour in ((worse, "worse without it", WORSE), (better, "better without it", BETTER)):
        axes.set_title(_pointed(words, side), loc="left" if side == "left" else "right", color=colour, fontsize=9)
    kind = f"{100 * (1 - ablation.alpha):g} % intervals{' (simultaneous)' if len(rows) > 1 else ''}"
    axes.set_xlabel(f"change of {_plain(ablation.metric)}, {kind}", parse_math=False)
    figure.savefig(path)


def reach_of(rows: list[Row]) -> float:
    """How far the axis goes to either side."""
    sizes = [abs(row.difference) for row in rows if math.isfinite(row.difference)]
    ends = [abs(end) for row in rows for end in (row.low, row.high) if math.isfinite(end)]
    largest = max(sizes, default=0.0)
    return min(max([largest, *ends]) * 1.05, _WIDEST * largest) if largest else max(ends, default=1.0) or 1.0


def colour_of(row: Row) -> str:
    """The colour of a row's verdict."""
    if row.verdict.startswith(("worse", "both: worse")):
        return WORSE
    return BETTER if row.verdict.startswith(("better", "both: better")) else OPEN


def _plain(name: str) -> str:
    """A name as it stands on the picture: on one line, and not too long."""
    line = clean(name)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _pointed(words: str, side: str) -> str:
    return f"← {words}" if side == "left" else f"{words} →"
