"""The Pareto set of a search of several objectives, as a table and as a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from maggy_like.display.text import clean, config_text, number
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData

ROWS = 10
"""Trials that the table shows; ``Result.pareto`` has all."""


def pareto_lines(result: ResultData) -> list[str]:
    """The Pareto set, a line a trial, the best by the first objective first."""
    goals = ", ".join(f"{direction} {clean(name)}" for direction, name in _goals(result))
    if not result.pareto:
        return [f"no trial has all values ({goals})"]
    ranked = sorted(result.pareto, key=lambda trial: trial.values[0], reverse=result.direction == "max")
    rows = [["trial", *(clean(name) for _, name in _goals(result)), "config"]]
    rows += [[str(t.id), *map(number, t.values), config_text(t.config)] for t in ranked[:ROWS]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    more = [f"and {len(ranked) - ROWS} more in result.pareto"] if len(ranked) > ROWS else []
    return [f"Pareto set of {len(ranked)} ({goals}):", *lines, *more]


def plot_pareto(result: ResultData, path: str | Path) -> None:
    """Draw the first two objectives; see :meth:`~maggy_like.results.result.Result.plot_pareto`."""
    if not result.others:
        raise UserError("plot_pareto() needs several objectives; pass metric=[...] and direction=[...] to lagom")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("plot_pareto() needs matplotlib; install it with: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    best = {trial.id for trial in result.pareto}
    rest = [trial.values[:2] for trial in result.trials if trial.values and trial.id not in best]
    front = sorted(trial.values[:2] for trial in result.pareto)
    for points, style, label in ((rest, "o", "dominated"), (front, "o-", "Pareto set")):
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, alpha=0.4 if points is rest else 1.0)
    (_, first), (_, second), *_ = _goals(result)
    axes.set(xlabel=first, ylabel=second)
    if best or rest:
        axes.legend()
    figure.savefig(path)


def _goals(result: ResultData) -> list[tuple[str, str]]:
    return [(result.direction, result.objective), *result.others]
