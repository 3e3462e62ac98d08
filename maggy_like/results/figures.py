"""The plots of a run, made with plotly. The points of a trial have its number as their ``customdata``."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from maggy_like.display.text import config_text, duration, number, pairs
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData, Training
from maggy_like.results.record import Attempt, Record, improvements, value_of
from optimizers.checks import did_you_mean
from optimizers.core.trial import Curve, Trial, TrialState
from optimizers.space import Config
from optimizers.space.domains import Constant, Domain, Float, Integer

T = TypeVar("T")

COLOURS = {
    TrialState.COMPLETED: "#3b8bc4",
    TrialState.STOPPED: "#e69f00",
    TrialState.PAUSED: "#c27ba0",
    TrialState.FAILED: "#d9534f",
    TrialState.RUNNING: "#8a8f98",
    TrialState.PENDING: "#b9bdc4",
}
"""Of trials by their state. They are visible on white and on black."""

SYMBOLS = {
    TrialState.COMPLETED: "circle",
    TrialState.STOPPED: "diamond",
    TrialState.PAUSED: "square",
    TrialState.FAILED: "x",
    TrialState.RUNNING: "circle-open",
    TrialState.PENDING: "square-open",
}
"""Of trials by their state, for a reader who cannot distinguish the colours."""

BEST = "#2a9d6f"
"""Of the best so far."""

SERIES = ("#3b8bc4", "#e69f00", "#2a9d6f", "#d9534f", "#a08ad0", "#56b4e9", "#c27ba0", "#8a8f98")
"""Of what has no state: runs and metrics."""

DASHES = ("solid", "dash", "dot", "dashdot")

SCALE = [[0.0, "#8a8f98"], [0.5, "#3b8bc4"], [1.0, "#e8590c"]]
"""From worst to best, and from early to late: the end that matters stands out on white and on black."""

_FAR = 4.0
"""An axis leaves out values that are further from the middle half of the values than this many times its width."""


def new_figure(title: str, note: str = "", *, height: int = 420, x: str = "", y: str = "") -> go.Figure:
    """Make an empty figure of a height in pixels, with ``note`` below its title."""
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "subtitle": {"text": note}, "y": 1.0, "yanchor": "top", "pad": {"t": 16}},
        height=height,
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 104, "b": 50},  # above: title, note and legend
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0.0},
        xaxis_title=x,
        yaxis_title=y,
    )
    return figure


def drawn(items: Sequence[T], most: int, best: Iterable[T] = ()) -> list[T]:
    """Return the ``best`` and every k-th item, in order: about ``most`` in addition to the best."""
    if len(items) <= most:
        return list(items)
    kept = {id(item) for item in best} | {id(item) for item in items[:: math.ceil(len(items) / most)]}
    return [item for item in items if id(item) in kept]


def share_note(shown: int, total: int, what: str = "trials") -> str:
    """Return a sentence if not all are drawn, else an empty text."""
    return "" if shown == total else f"{shown:,} of {total:,} {what} are drawn, the best among them. "


def ranked(trials: Sequence[tuple[Trial, float]], direction: str) -> list[tuple[Trial, float]]:
    """Sort trials with their values, the best first."""
    return sorted(trials, key=lambda each: each[1], reverse=direction == "max")


def near(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the range of an axis that leaves out extreme values. None if there are none."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if len(ordered) < 8:
        return None
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    reach = _FAR * (high - low)
    inner = [value for value in ordered if low - reach <= value <= high + reach]
    if reach == 0.0 or len(inner) == len(ordered):
        return None
    margin = 0.05 * (inner[-1] - inner[0])
    return inner[0] - margin, inner[-1] + margin


def far_note(limits: tuple[float, float] | None) -> str:
    """Return a sentence if an axis leaves values out, else an empty text."""
    return "" if limits is None else "Extreme values lie outside; double-click shows them. "


def hover(trial: Trial, *lines: str) -> str:
    """Return the text of a trial's hover label, which plotly reads as HTML."""
    config = [f"{html.escape(name)} = {html.escape(_short(value))}" for name, value in pairs(trial.config)]
    more = [f"and {len(config) - 12} more"] if len(config) > 12 else []
    return "<br>".join([f"<b>trial {trial.id}</b>, {trial.state}", *map(html.escape, lines), *config[:12], *more])


def label(text: str, most: int = 40) -> str:
    """Escape a text for plotly. Of more than ``most`` characters both ends are kept, since paths differ in either."""
    return html.escape(_short(text, most), quote=False)


def is_numeric(domain: Domain) -> bool:
    """Return whether the domain's values are on an axis of numbers."""
    return isinstance(domain, Float | Integer)


def is_log(domain: Domain) -> bool:
    """Return whether that axis is logarithmic."""
    return isinstance(domain, Float | Integer) and domain.log


def level(config: Config, name: str) -> str:
    """Return the value of a parameter without such an axis, as text. ``-`` if it is inactive."""
    return _text(config[name]) if name in config else "-"


def levels(domain: Domain, found: Iterable[str]) -> list[str]:
    """Return the found texts in the order of the domain."""
    known = [_text(value) for value in domain.grid(domain.size or 1)]
    found = set(found)
    return [text for text in dict.fromkeys(known) if text in found] + sorted(found - set(known))


def is_shown(domain: Domain) -> bool:
    """Return whether a parameter varies."""
    return not isinstance(domain, Constant)


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _short(text: str, most: int = 40) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


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
    shown, notes = 0, ""
    for row, ((direction, name), found) in enumerate(zip(goals, ended, strict=True), start=1):
        best = improvements(found, direction)
        points = drawn(found, _MOST_TRIALS, best)
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
                    marker={"color": COLOURS[state], "symbol": SYMBOLS[state], "size": 9, "opacity": 0.8},
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
        title_subtitle_text=notes + share_note(shown, len(ended[0])),
        shapes=[seam(at) for at in record.clock.seams],
    )
    return figure


def seam(at: float) -> dict[str, object]:
    """Return a line where a driver resumed the run."""
    line = {"color": "#8a8f98", "dash": "dot", "width": 1}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line, "label": {
        "text": "resumed", "textposition": "end", "font": {"size": 10, "color": "#8a8f98"}}}  # fmt: skip


_MOST_CURVES = 300
"""Curves that are drawn in addition to the best."""

_BEST = 50
"""Curves of the best trials, which are always drawn."""

_POINTS = 200
"""Points of a curve."""

_RUNG = 3
"""Trials that must have ended early at a step for it to be a rung."""

_MOST_RUNGS = 12

_ENDED_EARLY = (TrialState.STOPPED, TrialState.PAUSED)


def curves(result: ResultData, by: str | None = None) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.curves`."""
    if by is not None and by not in result.space.domains:
        names = list(result.space.domains)
        raise UserError(f"there is no parameter {by!r}{did_you_mean(by, names)}; use {', '.join(names)}")
    trials = [trial for trial in result.trials if trial.reported is not None]
    if not trials:
        raise UserError("no trial has reported anything, so there are no curves; call reporter.report in train_fn")
    valued = [(trial, trial.value) for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    best = [trial for trial, _ in ranked(valued, result.direction)[:_BEST]]
    shown = drawn(trials, _MOST_CURVES, best)
    lines = [(trial, *_thinned(trial.curve)) for trial in shown]
    limits = near(value for _, _, values in lines for value in values)
    notes = far_note(limits) + share_note(len(shown), len(trials), "curves")
    figure = new_figure("Learning curves", notes, height=460, x="step", y=label(result.objective))
    others = [line for line in lines if by is not None or line[0] is not result.best_trial]
    for name, those, style in _groups(result, others, by):
        figure.add_trace(_lines(those, name, style))
    if stops := [line for line in lines if line[0].state in _ENDED_EARLY]:
        figure.add_scatter(
            x=[steps[-1] for _, steps, _ in stops],
            y=[values[-1] for _, _, values in stops],
            mode="markers",
            name="ended early",
            marker={"symbol": "x-thin", "size": 8, "line": {"width": 1.5, "color": "#8a8f98"}},
            hoverinfo="skip",
        )
    for trial, steps, values in lines:
        if by is None and trial is result.best_trial:
            said = [hover(trial, f"step {s}: {number(v)}") for s, v in zip(steps, values, strict=True)]
            width = {"color": BEST, "width": 3}
            figure.add_scatter(
                x=steps,
                y=values,
                name="best",
                line=width,
                mode="lines",
                text=said,
                hoverinfo="text",
                customdata=[trial.id] * len(steps),
            )
    for step in rungs(trials):
        figure.add_vline(step, line={"color": "#8a8f98", "dash": "dash", "width": 1}, opacity=0.6)
    figure.update_yaxes(range=limits)
    figure.update_xaxes(**whole_ticks(steps[-1] for _, steps, _ in lines))
    figure.update_layout(showlegend=True)
    return figure


Line = tuple[Trial, list[int], list[float]]
"""A trial, and the steps and values of its curve."""


def _groups(result: ResultData, lines: Sequence[Line], by: str | None) -> Iterator[tuple[str, list[Line], Style]]:
    """Yield the curves of each state, or of each value of a parameter: its name, the curves and their style."""
    if by is None:
        for state in TrialState:
            if those := [line for line in lines if line[0].state is state]:
                yield state.value, those, {"color": COLOURS[state], "width": 1.5}
        return
    given = {line[0].id: level(line[0].config, by) for line in lines}
    for place, value in enumerate(levels(result.space.domains[by], given.values())):
        yield label(value), [line for line in lines if given[line[0].id] == value], series(place)


Style = dict[str, object]
"""The style of a line, as plotly takes it."""


def series(place: int, width: float = 1.5) -> Style:
    """Return the style of a series. Neighbours differ in colour, and in their dashes."""
    return {"color": SERIES[place % len(SERIES)], "dash": DASHES[place % len(DASHES)], "width": width}


def whole_ticks(numbers: Iterable[float]) -> dict[str, object]:
    """Return the settings of an axis of integers up to the largest one: a short axis would have ticks between."""
    return {"dtick": 1} if max(numbers, default=0) <= _FEW else {}


_FEW = 10


def training_curves(training: Training) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.training`."""
    return trial_curves(training.trial, training.objective, "The training")


def trial_curves(trial: Trial, objective: str, title: str, marks: Iterable[int] = ()) -> go.Figure:
    """Plot all metrics of one trial over the steps, with dashed lines at the steps in ``marks``."""
    named = [(name, curve) for name, curve in trial.curves.items() if len(curve)]
    if not named:
        raise UserError(f"{title.lower()} has reported nothing, so it has no curves; call reporter.report in train_fn")
    figure = new_figure(title, height=360, x="step", y=label(objective))
    for place, (name, curve) in enumerate(sorted(named, key=lambda each: each[0] != objective)):
        steps, values = _thinned(curve, 10 * _POINTS)
        figure.add_scatter(
            x=steps,
            y=values,
            mode="lines+markers" if len(steps) < 60 else "lines",
            name=label(name),
            line=series(place, 2.0),
            visible=True if name == objective else "legendonly",  # of other sizes
        )
    for step in marks:
        figure.add_vline(step, line={"color": "#8a8f98", "dash": "dash", "width": 1}, opacity=0.6)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(**whole_ticks(curve.steps[-1] for _, curve in named))
    return figure


def rungs(trials: Sequence[Trial]) -> list[int]:
    """Return the steps at which trials were stopped or paused. Empty if they ended at any step, as by a rule."""
    counted = Counter(trial.reported for trial in trials if trial.state in _ENDED_EARLY and trial.reported)
    found = sorted(step for step, count in counted.items() if count >= _RUNG)
    return found if len(found) <= _MOST_RUNGS else []


def _thinned(curve: Curve, most: int = _POINTS) -> tuple[list[int], list[float]]:
    """Return steps and values of a curve: at most about ``most`` points, and always the last one."""
    every = math.ceil(len(curve) / most)
    places = [*range(0, len(curve) - 1, every), len(curve) - 1]
    return [curve.steps[place] for place in places], [curve.values[place] for place in places]


def _lines(those: Sequence[Line], name: str, style: Style) -> go.Scatter:
    """Return several curves as one trace, which a browser draws faster than many."""
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    ids: list[int] = []
    for trial, steps, values in those:
        x += [*steps, None]
        y += [*values, None]
        text += [f"trial {trial.id}, step {step}: {number(v)}" for step, v in zip(steps, values, strict=True)] + [""]
        ids += [trial.id] * (len(steps) + 1)
    one_point = all(len(steps) == 1 for _, steps, _ in those)
    return go.Scatter(
        x=x,
        y=y,
        mode="markers" if one_point else "lines",
        name=name,
        line=style,
        marker={"size": 8},
        opacity=0.7,
        text=text,
        hoverinfo="text",
        customdata=ids,
    )


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
    for trials, mode, name, colour, size in (
        (rest, "markers", "dominated", "#8a8f98", 8),
        (front, lines, "Pareto set", BEST, 11),
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
            customdata=[trial.id for trial in trials],
        )
    return figure


def _said(result: ResultData, trial: Trial) -> str:
    names = (result.objective, *(name for _, name in result.others))
    values = (f"{name} {number(value)}" for name, value in zip(names, trial.values, strict=False))
    return hover(trial, *values)


_MOST_LINES = 600
"""Trials in parallel coordinates. With more, lines cannot be followed."""

_MOST_POINTS = 1000
"""Trials in each slice."""

_MOST_PARAMS = 12
"""Parameters that are drawn by default."""

_COLUMNS = 3

_TICK = 16
"""Characters of a category's tick, so that neighbours do not overlap."""


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
            order = levels(domain, (level(trial.config, name) for trial, _ in points))
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
        order = levels(domain, cells)
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


_TALLEST = 720
"""Pixels of the plot for any number of workers."""

_CAPTIONED = 400
"""Up to this number of attempts, each shows its configuration on hover."""


def timeline(record: Record) -> go.Figure:
    """Implement :meth:`~maggy_like.results.plots.Plots.timeline`."""
    workers = sorted({worker for attempt in record.attempts for worker in attempt.workers})
    lane = min(22.0, (_TALLEST - 140) / max(1, len(workers)))
    figure = new_figure(
        "Trials of each worker",
        _note(record, len(workers)),
        height=round(160 + lane * len(workers)),
        x="seconds since the run began",
        y="worker",
    )
    for state in TrialState:
        those = [attempt for attempt in record.attempts if attempt.state is state]
        if those:
            figure.add_trace(_bars(record, those, state, max(1.5, 0.7 * lane)))
    figure.update_layout(shapes=[seam(at) for at in record.clock.seams])
    few = len(workers) <= 40
    margin = 0.6
    figure.update_yaxes(
        range=[(workers[-1] if workers else 0) + margin, (workers[0] if workers else 0) - margin],
        tickvals=workers if few else None,
        ticktext=["?" if worker < 0 else str(worker) for worker in workers] if few else None,
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(range=[0.0, record.clock.total or 1.0], zeroline=False)
    return figure


def _note(record: Record, workers: int) -> str:
    share = record.busy_share
    if share is None:
        return "No trial has run."
    first = min(attempt.begin for attempt in record.attempts)
    n_workers = f"{workers} worker{'s' * (workers > 1)}"
    return (
        f"{n_workers} busy {100 * share:.1f} % of the time between the first trial's start (after {duration(first)}) "
        "and the last one's end."
    )


def _bars(record: Record, attempts: list[Attempt], state: TrialState, width: float) -> go.Scatter:
    """Return the attempts that ended in a state as one trace of thick lines, which a browser draws fast."""
    configs = {trial.id: trial.config for trial in record.result.trials}
    rich = len(record.attempts) <= _CAPTIONED
    gap = 0.0004 * record.clock.total  # so that an attempt ends before the next one begins
    x: list[float | None] = []
    y: list[int | None] = []
    text: list[str] = []
    ids: list[int] = []
    for attempt in attempts:
        config = f"<br>{label(config_text(configs.get(attempt.trial, {})), most=120)}" if rich else ""
        again = f", attempt {attempt.number}" if attempt.number > 1 else ""
        seconds = f"{attempt.end - attempt.begin:.1f} s"
        said = f"trial {attempt.trial}{again}: steps {attempt.steps[0]} to {attempt.steps[1]}, {seconds}{config}"
        end = max(attempt.end - gap, attempt.begin)
        for worker in attempt.workers:
            x += [round(attempt.begin, 3), round((attempt.begin + end) / 2, 3), round(end, 3), None]
            y += [worker, worker, worker, None]
            text += [said, said, said, ""]
            ids += [attempt.trial] * 4
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        name="retried" if state is TrialState.PENDING else state.value,
        line={"color": COLOURS[state], "width": width},
        text=text,
        hoverinfo="text",
        customdata=ids,
    )


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
