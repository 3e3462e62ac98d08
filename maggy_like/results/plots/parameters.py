"""Parameters and what they did: parallel coordinates, slices and importance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData
from maggy_like.results.plots import style
from maggy_like.results.record import value_of
from optimizers.checks.near_names import did_you_mean
from optimizers.core.trial import Trial

_MOST_LINES = 600
"""Trials in parallel coordinates: of more, no line can be followed."""

_MOST_POINTS = 1000
"""Trials in each slice."""

_MOST_PARAMS = 12
"""Parameters that are drawn where none are named."""

_COLUMNS = 3


def parallel(result: ResultData, params: Sequence[str] | None) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.parallel`."""
    found = _with_values(result)
    names, left_out = _chosen(result, params)
    best = style.ranked(found, result.direction)[: _MOST_LINES // 2]
    shown = style.drawn(found, _MOST_LINES // 2, best)
    values = [value for _, value in shown]
    limits = style.near(values) or (min(values), max(values))
    trials = [trial for trial, _ in shown]
    dims = [_dimension(result, name, trials) for name in names]
    dims.append({"label": style.label(result.objective), "values": values})
    note = left_out + style.share_note(len(shown), len(found))
    figure = style.picture("Parallel coordinates", note + "Drag along an axis to select.", height=440)
    figure.add_parcoords(
        dimensions=dims,
        line={
            "color": [min(max(value, limits[0]), limits[1]) for value in values],
            "colorscale": style.SCALE,
            "reversescale": result.direction == "min",
            "showscale": True,
            "cmin": limits[0],
            "cmax": limits[1],
            "colorbar": {"title": style.label(result.objective), "thickness": 12},
        },
    )
    figure.update_layout(margin={"l": 90, "r": 40, "t": 120, "b": 40})
    return figure


def slices(result: ResultData, params: Sequence[str] | None) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.slices`."""
    found = _with_values(result)
    names, left_out = _chosen(result, params)
    best = style.ranked(found, result.direction)[: _MOST_POINTS // 4]
    shown = style.drawn(found, _MOST_POINTS, best)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    limits = style.near(value for _, value in shown)
    note = style.far_note(limits) + left_out + style.share_note(len(shown), len(found))
    figure = style.picture("Slices: each parameter alone", note, height=120 + 270 * rows)
    make_subplots(
        rows=rows, cols=columns, shared_yaxes=True, figure=figure, horizontal_spacing=0.05, vertical_spacing=0.32 / rows
    )
    for place, name in enumerate(names):
        domain = result.space.domains[name]
        points = [(trial, value) for trial, value in shown if name in trial.config]
        numeric = style.is_numeric(domain)
        row, column = divmod(place, columns)
        figure.add_scatter(
            x=[trial.config[name] if numeric else style.level(trial.config, name) for trial, _ in points],
            y=[value for _, value in points],
            mode="markers",
            showlegend=False,
            marker={"color": [trial.id for trial, _ in points], "coloraxis": "coloraxis", "size": 6, "opacity": 0.8},
            text=[style.hover(trial, f"{result.objective} {number(value)}") for trial, value in points],
            hoverinfo="text",
            row=row + 1,
            col=column + 1,
        )
        figure.update_xaxes(title=style.label(name), row=row + 1, col=column + 1)
        if numeric:
            kind: dict[str, Any] = {"type": "linear"}
            if style.is_log(domain):
                kind = {"type": "log", "exponentformat": "power", "dtick": 1 if _decades(points, name) > 1.5 else None}
            figure.update_xaxes(**kind, row=row + 1, col=column + 1)
        else:
            order = style.levels(domain, (style.level(trial.config, name) for trial, _ in points))
            texts = list(map(style.label, order))
            figure.update_xaxes(
                type="category", categoryorder="array", categoryarray=order, row=row + 1, col=column + 1
            )
            figure.update_xaxes(tickvals=order, ticktext=texts, row=row + 1, col=column + 1)
        if column == 0:
            figure.update_yaxes(title=style.label(result.objective), row=row + 1, col=1)
    bar = {"title": "trial", "thickness": 12}
    figure.update_layout(coloraxis={"colorscale": style.SCALE, "colorbar": bar})
    figure.update_yaxes(range=limits)
    return figure


def importance_bars(shares: dict[str, float]) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.importance`."""
    names = list(shares)[::-1]
    figure = style.picture(
        "Importance of the parameters",
        "Shares of what distinguishes the best quarter of the trials from the others (PED-ANOVA).",
        height=130 + 32 * len(names),
        x="share",
    )
    figure.add_bar(
        x=[shares[name] for name in names],
        y=[*range(len(names))],  # and not the names: plotly makes one bar of those that are shortened alike
        orientation="h",
        marker={"color": style.SERIES[0]},
        text=[f"{shares[name]:.0%}" for name in names],
        textposition="outside",
        hoverinfo="skip",
    )
    figure.update_xaxes(tickformat=".0%", range=[0.0, 1.12 * max(shares.values())])  # with room for the text
    texts = list(map(style.label, names))
    figure.update_yaxes(tickvals=[*range(len(names))], ticktext=texts, automargin=True)
    return figure


def _with_values(result: ResultData) -> list[tuple[Trial, float]]:
    """The trials that have a finite value of the first objective.

    Raises:
        UserError: None has.
    """
    valued = [(trial, value_of(result, trial)) for trial in result.trials]
    found = [(trial, value) for trial, value in valued if value is not None and math.isfinite(value)]
    if not found:
        raise UserError("no trial has a value, so there is nothing to draw; see result.failures")
    return found


def _chosen(result: ResultData, params: Sequence[str] | None) -> tuple[list[str], str]:
    """The parameters to draw, and a sentence where that are not all.

    Raises:
        UserError: One of them is unknown, or there is none.
    """
    known = [name for name, domain in result.space.domains.items() if style.is_shown(domain)]
    if params is None:
        if not known:
            raise UserError("all parameters are constants, so there is nothing to compare")
        note = f"The first {_MOST_PARAMS} of {len(known)} parameters. " if len(known) > _MOST_PARAMS else ""
        return known[:_MOST_PARAMS], note
    if isinstance(params, str) or not params:
        raise UserError(f"params must be a list of parameters' names, got {params!r}; write params={known[:1]}")
    for name in params:
        if name not in result.space.domains:
            raise UserError(f"there is no parameter {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return list(params), ""


def _decades(points: Sequence[tuple[Trial, float]], name: str) -> float:
    """How many powers of ten the values of a parameter span; 0 where it was never active."""
    values = [trial.config[name] for trial, _ in points]
    return math.log10(max(values) / min(values)) if values else 0.0


def _dimension(result: ResultData, name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """An axis of the parallel coordinates. An inactive parameter is at its lower end."""
    domain = result.space.domains[name]
    if not style.is_numeric(domain):
        cells = [style.level(trial.config, name) for trial in trials]
        order = style.levels(domain, cells)
        codes = {text: code for code, text in enumerate(order)}
        texts = list(map(style.label, order))
        return {"label": style.label(name), "values": [codes[it] for it in cells], "tickvals": [*range(len(order))],
                "ticktext": texts}  # fmt: skip
    turn = math.log10 if style.is_log(domain) else float
    given = [trial.config.get(name) for trial in trials]
    active = [turn(value) for value in given if value is not None]
    low, high = (min(active), max(active)) if active else (0.0, 1.0)
    inactive = low - 0.1 * ((high - low) or 1.0)
    values = [inactive if value is None else turn(value) for value in given]
    ticks = [low + (high - low) * part / 4 for part in range(5)] if high > low else [low]
    texts = [f"{10**tick if style.is_log(domain) else tick:.3g}" for tick in ticks]
    if None in given:
        ticks, texts = [inactive, *ticks], ["-", *texts]
    return {"label": style.label(name), "values": values, "tickvals": ticks, "ticktext": texts}
