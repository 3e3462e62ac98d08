"""The Pareto set of a search of several objectives, as a table."""

from __future__ import annotations

from maggy_like.display.text import clean, config_text, number
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


def _goals(result: ResultData) -> list[tuple[str, str]]:
    return [(result.direction, result.objective), *result.others]
