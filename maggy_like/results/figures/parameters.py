"""Values of trials and their parameters: parallel coordinates, slices and importance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData
from maggy_like.results.figures.style import (
    SCALE,
    SERIES,
    drawn,
    far_note,
    hover,
    is_log,
    is_numeric,
    is_shown,
    label,
    level,
    levels,
    near,
    new_figure,
    ranked,
    share_note,
    whole_ticks,
)
from maggy_like.results.record import value_of
from optimizers.checks import did_you_mean
from optimizers.core.trial import Trial
from optimizers.space.domains import Integer

_MOST_LINES = 600
"""Trials in parallel coordinates. With more, lines cannot be followed."""

_MOST_POINTS = 1000
"""Trials in each slice."""

_MOST_PARAMS = 12
"""Parameters that are drawn by default."""

_COLUMNS = 3

_TICK = 16
"""Characters of a category's tick, so that neighbors do not overlap."""


def parallel(result: ResultData, params: Sequence[str] | None) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.parallel`."""
    found = _with_values(result)
    names, left_out = _chosen(result, params)
    best = ranked(found, result.direction)[: _MOST_LINES // 2]
    shown = drawn(found, _MOST_LINES // 2, best)
    values = [value for _, value in shown]
    limits = near(values) or (min(values), max(values))
    trials = [trial for trial, _ in shown]
    dims = [_dimension(result, name, trials) for name in names]
    ticks, texts = _ticks(min(values), max(values))
    dims.append({"label": label(result.objective), "values": values, "tickvals": ticks, "ticktext": texts})
    note = left_out + share_note(len(shown), len(found))
    note += "The best trials are orange, the worst ones grey. Drag along an axis to select."
    figure = new_figure("Parallel coordinates", note, height=440)
    figure.add_parcoords(
        dimensions=dims,
        line={
            "color": [min(max(value, limits[0]), limits[1]) for value in values],
            "colorscale": SCALE,
            "reversescale": result.direction == "min",
            "cmin": limits[0],
            "cmax": limits[1],
        },
    )
    figure.update_layout(margin={"l": 90, "r": 60, "t": 120, "b": 40})
    return figure


def slices(result: ResultData, params: Sequence[str] | None) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.slices`."""
    found = _with_values(result)
    names, left_out = _chosen(result, params)
    best = ranked(found, result.direction)[: _MOST_POINTS // 4]
    shown = drawn(found, _MOST_POINTS, best)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    limits = near(value for _, value in shown)
    note = far_note(limits) + left_out + share_note(len(shown), len(found))
    figure = new_figure("Slices: the value over each parameter", note, height=120 + 270 * rows)
    make_subplots(
        rows=rows, cols=columns, shared_yaxes=True, figure=figure, horizontal_spacing=0.05, vertical_spacing=0.32 / rows
    )
    for place, name in enumerate(names):
        domain = result.space.domains[name]
        points = [(trial, value) for trial, value in shown if name in trial.config]
        numeric = is_numeric(domain)
        row, column = divmod(place, columns)
        figure.add_scatter(
            x=[trial.config[name] if numeric else level(trial.config, name) for trial, _ in points],
            y=[value for _, value in points],
            mode="markers",
            showlegend=False,
            marker={"color": [trial.id for trial, _ in points], "coloraxis": "coloraxis", "size": 8, "opacity": 0.8},
            text=[hover(trial, f"{result.objective} {number(value)}") for trial, value in points],
            hoverinfo="text",
            customdata=[trial.id for trial, _ in points],
            row=row + 1,
            col=column + 1,
        )
        figure.update_xaxes(title=label(name), row=row + 1, col=column + 1)
        if numeric:
            kind: dict[str, Any] = {"type": "linear"}
            if is_log(domain):
                kind = {"type": "log", **_decade_ticks([trial.config[name] for trial, _ in points])}
            elif isinstance(domain, Integer):
                kind = whole_ticks([domain.high - domain.low])
            figure.update_xaxes(**kind, row=row + 1, col=column + 1)
        else:
            order = levels(domain, name, (trial.config for trial, _ in points))
            texts = [label(text, _TICK) for text in order]
            figure.update_xaxes(
                type="category", categoryorder="array", categoryarray=order, row=row + 1, col=column + 1
            )
            figure.update_xaxes(tickvals=order, ticktext=texts, row=row + 1, col=column + 1)
        if column == 0:
            figure.update_yaxes(title=label(result.objective), row=row + 1, col=1)
    bar = {"title": "trial", "thickness": 12, **whole_ticks(trial.id for trial, _ in shown)}
    figure.update_layout(coloraxis={"colorscale": SCALE, "colorbar": bar})
    figure.update_yaxes(range=limits)
    return figure


def importance_bars(shares: dict[str, float]) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.importance`."""
    names = list(shares)[::-1]
    figure = new_figure(
        "Importance of the parameters",
        "Shares of what distinguishes the best quarter of the trials from the others (PED-ANOVA).",
        height=130 + 32 * len(names),
        x="share",
    )
    figure.add_bar(
        x=[shares[name] for name in names],
        y=[*range(len(names))],  # not the names: plotly would merge bars whose names are shortened to the same text
        orientation="h",
        marker={"color": SERIES[0]},
        text=[f"{shares[name]:.0%}" for name in names],
        textposition="outside",
        hoverinfo="skip",
    )
    figure.update_xaxes(tickformat=".0%", range=[0.0, 1.12 * max(shares.values())])  # with room for the text
    texts = list(map(label, names))
    figure.update_yaxes(tickvals=[*range(len(names))], ticktext=texts, automargin=True, ticklabelstandoff=6)
    return figure


def _with_values(result: ResultData) -> list[tuple[Trial, float]]:
    """Return the trials that have a finite value of the first objective, with that value. There must be one."""
    valued = [(trial, value_of(result, trial)) for trial in result.trials]
    found = [(trial, value) for trial, value in valued if value is not None and math.isfinite(value)]
    if not found:
        raise UserError("no trial has a value, so there is nothing to draw; see result.failures")
    return found


def _chosen(result: ResultData, params: Sequence[str] | None) -> tuple[list[str], str]:
    """Return the parameters to draw, and a sentence if some are left out."""
    known = [name for name, domain in result.space.domains.items() if is_shown(domain)]
    if params is None:
        if not known:
            raise UserError("all parameters are constants, so there is nothing to compare")
        note = f"The first {_MOST_PARAMS} of {len(known)} parameters. " if len(known) > _MOST_PARAMS else ""
        return known[:_MOST_PARAMS], note
    if isinstance(params, str) or not params:
        raise UserError(f"params must be a list of parameters' names, got {params!r}; write params={known[:1]}")
    for name in params:
        if name not in result.space.domains:
            raise UserError(f"there is no parameter {name!r}{did_you_mean(name, known)}; use {', '.join(known)}")
    return list(params), ""


def _decade_ticks(values: Sequence[float]) -> dict[str, object]:
    """Return ticks at about five powers of ten. With fewer than two powers, plotly chooses others between them."""
    low, high = (math.log10(min(values)), math.log10(max(values))) if values else (0.0, 0.0)
    if high - low <= 1.5:
        return {}
    powers = range(math.floor(low), math.ceil(high) + 1)
    shown = [10.0**power for power in powers[:: math.ceil(len(powers) / 5)]]
    return {"tickvals": shown, "ticktext": [f"{value:g}" for value in shown]}


def _dimension(result: ResultData, name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return an axis of the parallel coordinates. An inactive parameter is at its lower end."""
    domain = result.space.domains[name]
    if not is_numeric(domain):
        cells = [level(trial.config, name) for trial in trials]
        order = levels(domain, name, (trial.config for trial in trials))
        codes = {text: code for code, text in enumerate(order)}
        texts = [label(text, _TICK) for text in order]
        return {"label": label(name), "values": [codes[it] for it in cells], "tickvals": [*range(len(order))],
                "ticktext": texts}  # fmt: skip
    turn = math.log10 if is_log(domain) else float
    given = [trial.config.get(name) for trial in trials]
    active = [turn(value) for value in given if value is not None]
    low, high = (min(active), max(active)) if active else (0.0, 1.0)
    inactive = low - 0.1 * ((high - low) or 1.0)
    values = [inactive if value is None else turn(value) for value in given]
    ticks, texts = _ticks(low, high, is_log=is_log(domain), is_whole=isinstance(domain, Integer))
    if None in given:
        ticks, texts = [inactive, *ticks], ["-", *texts]
    return {"label": label(name), "values": values, "tickvals": ticks, "ticktext": texts}


def _ticks(low: float, high: float, *, is_log: bool = False, is_whole: bool = False) -> tuple[list[float], list[str]]:
    """Return about five ticks of an axis, and their texts. The ends of a logarithmic axis are exponents of ten."""
    ticks = [low + (high - low) * part / 4 for part in range(5)] if high > low else [low]
    shown = [10**tick if is_log else tick for tick in ticks]
    if is_whole:
        shown = [float(value) for value in dict.fromkeys(map(round, shown))]
        ticks = [math.log10(value) if is_log else value for value in shown]
    return ticks, [f"{value:.0f}" if is_whole else f"{value:.3g}" for value in shown]
