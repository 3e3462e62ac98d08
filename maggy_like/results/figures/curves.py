"""Learning curves: of a search by state or parameter, of one trial, and of a training run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import plotly.graph_objects as go

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData, Training
from maggy_like.results.figures.style import (
    BEST,
    COLORS,
    Style,
    drawn,
    far_note,
    hover,
    label,
    level,
    levels,
    near,
    new_figure,
    ranked,
    series,
    share_note,
    whole_ticks,
)
from optimizers.checks import did_you_mean
from optimizers.core.trial import Curve, Trial, TrialState

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
                yield state.value, those, {"color": COLORS[state], "width": 1.5}
        return
    given = {line[0].id: level(line[0].config, by) for line in lines}
    for place, value in enumerate(levels(result.space.domains[by], by, (line[0].config for line in lines))):
        yield label(value), [line for line in lines if given[line[0].id] == value], series(place)


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
