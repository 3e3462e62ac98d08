"""Several objectives: the trials, and the Pareto set among them."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData
from maggy_like.results.plots import style
from optimizers.core.trial import Trial

_MOST = 2000


def pareto(result: ResultData) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.pareto`."""
    if not result.others:
        raise UserError("plot.pareto() needs several objectives; pass metric=[...] and direction=[...] to lagom")
    (first_goal, first), (second_goal, second), *more = [(result.direction, result.objective), *result.others]
    found = [trial for trial in result.trials if trial.values and all(map(math.isfinite, trial.values))]
    best = {trial.id for trial in result.pareto}
    rest = style.drawn([trial for trial in found if trial.id not in best], _MOST)
    front = sorted((trial for trial in found if trial.id in best), key=lambda trial: trial.values[0])
    note = "The first two objectives; the set is that of all. " * bool(more)
    note += style.share_note(len(rest) + len(front), len(found))
    figure = style.picture(
        "Pareto set",
        note,
        height=460,
        x=style.label(f"{first} ({first_goal})"),
        y=style.label(f"{second} ({second_goal})"),
    )
    lines = "markers" if more else "lines+markers"
    for trials, mode, name, colour, size in (
        (rest, "markers", "dominated", "#8a8f98", 6),
        (front, lines, "Pareto set", style.BEST, 9),
    ):
        figure.add_scatter(
            x=[trial.values[0] for trial in trials],
            y=[trial.values[1] for trial in trials],
            mode=mode,
            name=name,
            marker={"color": colour, "size": size, "opacity": 0.6 if trials is rest else 1.0},
            line={"shape": "hv" if first_goal == "min" else "vh", "width": 1},
            text=[_said(result, trial) for trial in trials],
            hoverinfo="text",
        )
    return figure


def _said(result: ResultData, trial: Trial) -> str:
    names = (result.objective, *(name for _, name in result.others))
    values = (f"{name} {number(value)}" for name, value in zip(names, trial.values, strict=False))
    return style.hover(trial, *values)
