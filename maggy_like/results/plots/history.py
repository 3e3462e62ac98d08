"""The history of a search: what each trial was worth when it ended, and the best so far."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from maggy_like.display.text import number
from maggy_like.results.plots import style
from maggy_like.results.record import Record, improvements
from optimizers.core.trial import TrialState

_MOST = 2000
"""Trials that are drawn; more are a cloud for people, and slow for browsers."""


def history(record: Record) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.history`."""
    result = record.result
    goals = [(result.direction, result.objective), *result.others]
    ended = [record.ended(place) for place in range(len(goals))]
    figure = style.picture("Every trial, and the best so far", height=120 + 320 * len(goals))
    if len(goals) > 1:
        make_subplots(rows=len(goals), cols=1, shared_xaxes=True, vertical_spacing=0.08, figure=figure)
    shown, notes = 0, ""
    for row, ((direction, name), found) in enumerate(zip(goals, ended, strict=True), start=1):
        best = improvements(found, direction)
        points = style.drawn(found, _MOST, best)
        shown = len(points)
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
                    marker={"color": style.COLOURS[state], "size": 6, "opacity": 0.75},
                    text=[style.hover(trial, f"{name} {number(value)}") for _, trial, value in those],
                    hoverinfo="text",
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
            line={"shape": "hv", "color": style.BEST, "width": 2.5},
            text=[style.hover(trial, f"{name} {number(value)}") for _, trial, value in line],
            hoverinfo="text",
        )
        limits = style.near(value for _, _, value in points)
        notes = notes or style.far_note(limits)
        figure.layout[f"yaxis{axis}"].update(title=style.label(f"{name} ({direction})"), range=limits)
    figure.layout[f"xaxis{len(goals) if len(goals) > 1 else ''}"].update(title="seconds since the run began")
    figure.update_layout(
        title_subtitle_text=notes + style.share_note(shown, len(ended[0])),
        shapes=[seam(at) for at in record.clock.seams],
    )
    return figure


def seam(at: float) -> dict[str, object]:
    """A line where a driver took the run up again."""
    line = {"color": "#8a8f98", "dash": "dot", "width": 1}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line, "label": {
        "text": "resumed", "textposition": "end", "font": {"size": 10, "color": "#8a8f98"}}}  # fmt: skip
