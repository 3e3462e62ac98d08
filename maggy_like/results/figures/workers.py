"""Which worker ran which attempt when."""

from __future__ import annotations

import plotly.graph_objects as go

from maggy_like.display.text import config_text, duration
from maggy_like.results.figures.style import COLORS, label, new_figure, seam
from maggy_like.results.record import Attempt, Record
from optimizers.core.trial import TrialState

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
        line={"color": COLORS[state], "width": width},
        text=text,
        hoverinfo="text",
        customdata=ids,
    )
