"""Several runs: the best value of each over the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from maggy_like.display.text import number
from maggy_like.results.data import ResultData
from maggy_like.results.plots import style
from optimizers.core.trial import Trial


def comparison(
    best: Mapping[str, Sequence[tuple[float, Trial, float]]], goal: ResultData, seconds: Mapping[str, float]
) -> go.Figure:
    """The best value of each run over the time.

    Args:
        best: By run: when a trial ended that was better than all before it, which, and its value.
        goal: A result with the objective of all.
        seconds: By run: how long it took.
    """
    figure = style.picture(
        "Best so far", x="seconds since the run began", y=style.label(f"{goal.objective} ({goal.direction})")
    )
    for place, (name, found) in enumerate(best.items()):
        line = [*found, (seconds[name], found[-1][1], found[-1][2])] if found else []
        figure.add_scatter(
            x=[time for time, _, _ in line],
            y=[value for _, _, value in line],
            mode="lines",
            name=style.label(name),
            line={"shape": "hv", "width": 2.5, "color": style.SERIES[place % len(style.SERIES)]},
            text=[style.hover(trial, f"{name}: {number(value)}") for _, trial, value in line],
            hoverinfo="text",
        )
    figure.update_layout(showlegend=True)
    return figure
