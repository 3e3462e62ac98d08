"""The report of an ablation: its answer as a table and a picture, and below them its trials."""

from __future__ import annotations

import math
from os import PathLike
from typing import TYPE_CHECKING

from maggy_like.ablation import text
from maggy_like.ablation.comparisons import Comparisons
from maggy_like.ablation.forest import BETTER, OPEN, WORSE, colour_of, reach_of
from maggy_like.extras import require
from maggy_like.results.data import ResultData
from maggy_like.results.report.page import Section
from maggy_like.results.report.write import write_report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LIVELY = {WORSE: "#d9534f", BETTER: "#3b8bc4", OPEN: "#8a8f98"}
"""The forest plot's colours as they are on black, too."""


def report(answer: Comparisons, result: ResultData, path: str | PathLike[str]) -> None:
    """See :meth:`~maggy_like.ablation.outcome.Ablation.report`."""
    require("plotly", "report()")
    table = f'<div class="scroll">{text.html(answer)}</div>'
    write_report(result, path, [Section("Differences", table, forest(answer))])


def forest(answer: Comparisons) -> Figure:
    """The differences under each other, each with its interval."""
    from maggy_like.results.plots import style

    rows = answer.rows
    reach = reach_of(rows)
    worse, better = ("left", "right") if answer.direction == "max" else ("right", "left")
    kind = f"{100 * (1 - answer.alpha):g} % intervals{' (simultaneous)' if len(rows) > 1 else ''}"
    figure = style.picture(
        "Differences",
        f"To the {worse}: worse without it; to the {better}: better without it.",
        height=150 + 34 * len(rows),
        x=f"change of {style.label(answer.metric)}, {kind}",
    )
    for place, row in enumerate(rows):
        colour = _LIVELY[colour_of(row)]
        low, high = max(row.low, -reach), min(row.high, reach)
        p = f", p {text.p_text(row.p)}" if row.p is not None else ""
        found = f"{text.difference_text(row)} {text.interval_text(row)}{p}; {row.verdict}"
        said = f"{style.label(row.component)}: {style.label(found, most=120)}"
        if math.isfinite(low) and math.isfinite(high):
            line = {"color": colour, "width": 3}
            figure.add_scatter(x=[low, high], y=[place] * 2, mode="lines", line=line, text=said, hoverinfo="text")
        if math.isfinite(row.difference):
            mark = {"symbol": "square" if row.p is not None else "square-open", "size": 10, "color": colour}
            figure.add_scatter(x=[row.difference], y=[place], mode="markers", marker=mark, text=said, hoverinfo="text")
    figure.update_layout(showlegend=False)
    names = [style.label(row.component) for row in rows]
    figure.update_yaxes(tickvals=[*range(len(rows))], ticktext=names, range=[len(rows) - 0.4, -0.6], automargin=True)
    figure.update_xaxes(range=[-1.04 * reach, 1.04 * reach], zeroline=True)
    return figure
