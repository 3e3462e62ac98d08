"""Values of trials: over time, of several runs, and of several objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData
from maggy_like.results.figures.style import (
    BEST,
    COLORS,
    SYMBOLS,
    drawn,
    far_note,
    hover,
    label,
    near,
    new_figure,
    seam,
    series,
    share_note,
)
from maggy_like.results.record import Record, improvements
from optimizers.core.trial import Trial, TrialState

_MOST_TRIALS = 2000
"""Trials that are drawn. More cannot be distinguished, and are slow in browsers."""


def history(record: Record) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.history`."""
    result = record.result
    goals = [(result.direction, result.objective), *result.others]
    ended = [record.ended(place) for place in range(len(goals))]
    figure = new_figure("Every trial, and the best so far", height=120 + 320 * len(goals))
    if len(goals) > 1:
        make_subplots(rows=len(goals), cols=1, shared_xaxes=True, vertical_spacing=0.08, figure=figure)
    notes = left_out = ""
    for row, ((direction, name), found) in enumerate(zip(goals, ended, strict=True), start=1):
        best = improvements(found, direction)
        points = drawn(found, _MOST_TRIALS, best)
        left_out = left_out or share_note(len(points), len(found))
        axis = str(row) if row > 1 else ""
        for state in TrialState:
            those = [each for each in points if each[1].state is state]
            if those:
                figure.add_scatter(
                    x=[time for time, _, _ in those],
                    y=[value for _, _, value in those],
                    xaxis=f"x{axis}",
                    yaxis=f"y{axis}",
                    mode="markers",
                    name=state.value,
                    legendgroup=state.value,
                    showlegend=row == 1,
                    marker={"color": COLORS[state], "symbol": SYMBOLS[state], "size": 9, "opacity": 0.8},
                    text=[hover(trial, f"{name} {number(value)}") for _, trial, value in those],
                    hoverinfo="text",
                    customdata=[trial.id for _, trial, _ in those],
                )
        line = [*best, (record.clock.total, best[-1][1], best[-1][2])] if best else []
        figure.add_scatter(
            x=[time for time, _, _ in line],
            y=[value for _, _, value in line],
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
            mode="lines",
            name="best so far",
            legendgroup="best",
            showlegend=row == 1,
            line={"shape": "hv", "color": BEST, "width": 2.5},
            text=[hover(trial, f"{name} {number(value)}") for _, trial, value in line],
            hoverinfo="text",
            customdata=[trial.id for _, trial, _ in line],
        )
        limits = near(value for _, _, value in points)
        notes = notes or far_note(limits)
        figure.layout[f"yaxis{axis}"].update(title=label(f"{name} ({direction})"), range=limits)
    figure.layout[f"xaxis{len(goals) if len(goals) > 1 else ''}"].update(title="seconds since the run began")
    figure.update_layout(
        title_subtitle_text=notes + left_out,
        shapes=[seam(at) for at in record.clock.seams],
    )
    return figure


_MOST_IN_SPACE = 2000


def pareto(result: ResultData) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.pareto`."""
    if not result.others:
        raise UserError("plot.pareto() needs several objectives; pass metric=[...] and direction=[...] to lagom")
    (first_goal, first), (second_goal, second), *more = [(result.direction, result.objective), *result.others]
    found = [trial for trial in result.trials if trial.values and all(map(math.isfinite, trial.values))]
    best = {trial.id for trial in result.pareto}
    rest = drawn([trial for trial in found if trial.id not in best], _MOST_IN_SPACE)
    front = sorted((trial for trial in found if trial.id in best), key=lambda trial: trial.values[0])
    note = "The first two objectives. The Pareto set is that of all objectives. " * bool(more)
    note += share_note(len(rest) + len(front), len(found))
    figure = new_figure(
        "Pareto set",
        note,
        height=460,
        x=label(f"{first} ({first_goal})"),
        y=label(f"{second} ({second_goal})"),
    )
    lines = "markers" if more else "lines+markers"
    for trials, mode, name, color, size in (
        (rest, "markers", "dominated", "#8a8f98", 8),
        (front, lines, "Pareto set", BEST, 11),
    ):
        figure.add_scatter(
            x=[trial.values[0] for trial in trials],
            y=[trial.values[1] for trial in trials],
            mode=mode,
            name=name,
            marker={"color": color, "size": size, "opacity": 0.6 if trials is rest else 1.0},
            line={"shape": "hv" if first_goal == "min" else "vh", "width": 1},
            text=[_said(result, trial) for trial in trials],
            hoverinfo="text",
            customdata=[trial.id for trial in trials],
        )
    return figure


def _said(result: ResultData, trial: Trial) -> str:
    names = (result.objective, *(name for _, name in result.others))
    values = (f"{name} {number(value)}" for name, value in zip(names, trial.values, strict=False))
    return hover(trial, *values)


def comparison(
    best: Mapping[str, Sequence[tuple[float, Trial, float]]], goal: ResultData, seconds: Mapping[str, float]
) -> go.Figure:
    """Plot the best value of each run over the time.

    ``best`` has, by run, the trials that were better than all before them: when each ended, the trial, and its value.
    ``goal`` is any of the results, since all runs have one objective. ``seconds`` has how long each run took.
    """
    figure = new_figure("Best so far", x="seconds since the run began", y=label(f"{goal.objective} ({goal.direction})"))
    for place, (name, found) in enumerate(best.items()):
        line = [*found, (seconds[name], found[-1][1], found[-1][2])] if found else []
        figure.add_scatter(
            x=[time for time, _, _ in line],
            y=[value for _, _, value in line],
            mode="lines",
            name=label(name),
            line={"shape": "hv", **series(place, 2.5)},
            text=[hover(trial, f"{name}: {number(value)}") for _, trial, value in line],
            hoverinfo="text",
        )
    figure.update_layout(showlegend=True)
    return figure
