"""Learning curves: of the search's trials with its rungs and stops, and of a training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData
from maggy_like.results.plots import style
from maggy_like.results.training import Training
from optimizers.core.curve import Curve
from optimizers.core.trial import Trial, TrialState

_MOST = 300
"""Curves that are drawn beside the best."""

_BEST = 50
"""The best trials' curves are drawn whatever their number."""

_POINTS = 200
"""Points of a curve; of more, some are left out."""

_RUNG = 3
"""So many trials that ended early at one step make it a rung."""

_MOST_RUNGS = 12

_ENDED_EARLY = (TrialState.STOPPED, TrialState.PAUSED)


def curves(result: ResultData) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.curves`."""
    trials = [trial for trial in result.trials if trial.reported is not None]
    if not trials:
        raise UserError("no trial has reported anything, so there are no curves; call reporter.report in train_fn")
    worth = [(trial, trial.value) for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    best = [trial for trial, _ in style.ranked(worth, result.direction)[:_BEST]]
    shown = style.drawn(trials, _MOST, best)
    lines = [(trial, *_thinned(trial.curve)) for trial in shown]
    limits = style.near(value for _, _, values in lines for value in values)
    notes = style.far_note(limits) + style.share_note(len(shown), len(trials), "curves")
    figure = style.picture("Learning curves", notes, height=460, x="step", y=style.label(result.objective))
    for state in TrialState:
        those = [line for line in lines if line[0].state is state and line[0] is not result.best_trial]
        if those:
            figure.add_trace(_lines(those, state))
    stops = [line for line in lines if line[0].state in _ENDED_EARLY]
    figure.add_scatter(
        x=[steps[-1] for _, steps, _ in stops],
        y=[values[-1] for _, _, values in stops],
        mode="markers",
        name="ended early",
        marker={"symbol": "x-thin", "size": 6, "line": {"width": 1.5, "color": "#8a8f98"}},
        hoverinfo="skip",
    )
    for trial, steps, values in lines:
        if trial is result.best_trial:
            said = [style.hover(trial, f"step {s}: {number(v)}") for s, v in zip(steps, values, strict=True)]
            width = {"color": style.BEST, "width": 3}
            figure.add_scatter(x=steps, y=values, name="best", line=width, mode="lines", text=said, hoverinfo="text")
    for step in rungs(trials):
        figure.add_vline(step, line={"color": "#8a8f98", "dash": "dash", "width": 1}, opacity=0.6)
    figure.update_yaxes(range=limits)
    return figure


def training_curves(training: Training) -> go.Figure:
    """See :meth:`~maggy_like.results.plots.plots.Plots.training`."""
    named = [(name, curve) for name, curve in training.trial.curves.items() if len(curve)]
    if not named:
        raise UserError("the training has reported nothing, so it has no curves; call reporter.report in train_fn")
    figure = style.picture("The training", height=360, x="step", y=style.label(training.objective))
    for place, (name, curve) in enumerate(sorted(named, key=lambda each: each[0] != training.objective)):
        steps, values = _thinned(curve, 10 * _POINTS)
        figure.add_scatter(
            x=steps,
            y=values,
            mode="lines+markers" if len(steps) < 60 else "lines",
            name=style.label(name),
            line={"color": style.SERIES[place % len(style.SERIES)]},
            visible=True if name == training.objective else "legendonly",  # of other sizes
        )
    figure.update_layout(showlegend=True)
    return figure


def rungs(trials: Sequence[Trial]) -> list[int]:
    """The steps at which trials were stopped or paused together; none where they ended at any step, as by a rule."""
    counted = Counter(trial.reported for trial in trials if trial.state in _ENDED_EARLY and trial.reported)
    found = sorted(step for step, count in counted.items() if count >= _RUNG)
    return found if len(found) <= _MOST_RUNGS else []


def _thinned(curve: Curve, most: int = _POINTS) -> tuple[list[int], list[float]]:
    """Steps and values of a curve, with at most about ``most`` points; the last one always."""
    every = math.ceil(len(curve) / most)
    places = [*range(0, len(curve) - 1, every), len(curve) - 1]
    return [curve.steps[place] for place in places], [curve.values[place] for place in places]


def _lines(those: Sequence[tuple[Trial, list[int], list[float]]], state: TrialState) -> go.Scatter:
    """The curves of a state as one trace, which a browser draws faster than many."""
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for trial, steps, values in those:
        x += [*steps, None]
        y += [*values, None]
        text += [f"trial {trial.id}, step {step}: {number(v)}" for step, v in zip(steps, values, strict=True)] + [""]
    one_point = all(len(steps) == 1 for _, steps, _ in those)
    return go.Scatter(
        x=x,
        y=y,
        mode="markers" if one_point else "lines",
        name=state.value,
        line={"color": style.COLOURS[state], "width": 1},
        opacity=0.6,
        text=text,
        hoverinfo="text",
    )
