"""A result as text and as tables: of pandas, aligned for a terminal, and in HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from maggy_like.display.base import failures_by_kind
from maggy_like.display.text import MAX_FAILURES, clean, config_text, duration, failure, number, place, tally, words
from maggy_like.extras import require
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.values import attribute_names, encodable
from maggy_like.results.data import ResultData, training_line
from optimizers.core.trial import Trial, TrialState
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    import pandas


def trials_table(result: ResultData) -> pandas.DataFrame:
    """Implement :meth:`Result.to_pandas`."""
    require("pandas", "to_pandas()")
    import pandas

    rows: list[dict[str, Any]] = [
        {
            "trial": trial.id,
            "state": trial.state.value,
            **_values(result, trial),
            "step": trial.reported if trial.reported is not None else trial.start or None,
            "attempts": trial.attempts,
            "seconds": trial.seconds,
            "failure": trial.failure.message if trial.failure is not None else None,
            "parent": trial.parent,
        }
        for trial in result.trials
    ]
    fixed = {name for row in rows for name in row}
    params = {name: _param_column(name, fixed, result.space) for name in result.space.domains}
    names = attribute_names(result.trials, taken={*fixed, *params, *params.values()})
    for trial, row in zip(result.trials, rows, strict=True):
        row |= {params.get(name, name): value for name, value in trial.config.items()}
        row |= {names[name]: value for name, value in trial.attributes.items()}
    table = pandas.DataFrame(rows)
    for name in {"value_step", "step", "parent"} & fixed:  # floats would round large steps
        table[name] = pandas.array([row[name] for row in rows], dtype="Int64")
    return table


def ranked(result: ResultData, table: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of the five best trials, or of the Pareto set. Values that are not finite rank worst."""
    import pandas

    if result.others and len(table):
        table = table[table["trial"].isin([trial.id for trial in result.pareto])]
    if len(table):
        by = f"value_{result.objective}" if result.others else "value"
        losses = pandas.to_numeric(table[by]) * (1.0 if result.direction == "min" else -1.0)
        table = table.loc[losses.where(losses.abs() < math.inf).sort_values(kind="stable").index]
    return table if result.others else table.head(5)


def curves_table(result: ResultData) -> pandas.DataFrame:
    """Implement :meth:`Result.curves`."""
    require("pandas", "curves()")
    import pandas

    rows = [
        (trial.id, step, name, value)
        for trial in result.trials
        for name, (steps, values) in trial.columns().items()
        for step, value in zip(steps, values, strict=True)
    ]
    return pandas.DataFrame(rows, columns=["trial", "step", "metric", "value"])


def _values(result: ResultData, trial: Trial) -> dict[str, Any]:
    """Return the objectives of a trial, by column."""
    if not result.others:
        return {"value": trial.value, "value_step": trial.value_step}
    names = (result.objective, *(name for _, name in result.others))
    values = trial.values or (None,) * len(names)
    return {f"value_{name}": value for name, value in zip(names, values, strict=True)}


def _param_column(name: str, fixed: Collection[str], space: SearchSpace) -> str:
    """Return the column of a parameter: its name, or ``param_NAME`` if that is taken."""
    column = name
    while column in fixed or (column != name and column in space.domains):
        column = f"param_{column}"
    return column


Rows = Sequence[Sequence[str]]


def aligned(head: Sequence[str], rows: Rows) -> str:
    """Return a table as text, with two spaces between columns. Numbers are aligned to the right.

    Example:
        >>> print(aligned(["run", "best"], [["august", "0.97"], ["may", "0.9"]]))
        run     best
        august  0.97
        may      0.9
    """
    cells = [list(map(clean, row)) for row in (head, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(_is_number(cell) for cell in column[1:]) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def as_html(head: Sequence[str], rows: Rows) -> str:
    """Return a table as HTML. The cells are escaped. Numbers are aligned to the right, at their decimal points."""
    columns = [[row[place] for row in rows] for place in range(len(head))]
    numeric = [all(map(_is_number, column)) for column in columns]
    widest = [max((len(_decimals(cell)) for cell in column), default=0) for column in columns]

    def line(cells: Sequence[str], tag: str) -> str:
        parts = []
        for cell, right, most in zip(cells, numeric, widest, strict=True):
            mark = ' class="number"' if right else ""
            missing = "" if tag == "th" or not right else _DECIMALS[len(_decimals(cell)) : most]
            hidden = f'<span style="visibility:hidden" aria-hidden="true">{missing}</span>' if missing else ""
            parts.append(f"<{tag}{mark}>{html.escape(clean(cell))}{hidden}</{tag}>")
        return "".join(parts)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


_DECIMALS = "." + 30 * "0"
"""Stands for missing decimals, as wide as they are."""


def _decimals(cell: str) -> str:
    """Return a number's decimals, with the point."""
    _, point, rest = cell.partition(".")
    return point + rest


def _is_number(cell: str) -> bool:
    return bool(cell) and cell[0] in "-+<0123456789" and cell.strip("-+<0123456789.:eE% ") == ""


ROWS = 10
"""Trials that the text shows. ``Result.pareto`` has all of them."""


def pareto_lines(result: ResultData) -> list[str]:
    """Return the Pareto set, one line per trial, sorted by the first objective."""
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


def summary(result: ResultData) -> str:
    """Return a few lines: how the search ended, the best trial, failures, and the folder of its files."""
    counted = tally(result.counts)
    trials = f": {len(result.trials)} trial{'s' * (len(result.trials) != 1)}" + (f" ({counted})" if counted else "")
    is_only_training = result.training is not None and not result.trials
    ended = words(result.ending, None if result.training is None else result.training.trial.state)
    lines = [f"{ended} after {lasted(result)}{'' if is_only_training else trials}"]
    if result.others:
        lines += pareto_lines(result)
    elif result.best_trial is not None:
        trial = result.best_trial
        where = place(trial.id, trial.value_step, failed=trial.state is TrialState.FAILED)
        best = f"best {result.objective} {number(result.best_value)} {where}"
        lines.append(f"{best}: {config_text(trial.config)}")
    elif any(trial.value is not None and math.isfinite(trial.value) for trial in result.trials):
        lines.append("no best trial: an ablation compares groups of trials, and ablate(...) returns the comparisons")
    elif any(trial.value is not None for trial in result.trials):
        lines.append("no trial has a finite value; trial.curve has the reports of each")
    elif result.trials or result.training is None:
        lines.append(_without_value(result))
    lines += [failure(line) for line in failures_by_kind(result.trials)[:MAX_FAILURES]]
    if result.training is not None:
        lines.append(training_line(result.training))
    lines.append(encodable(f"files: {result.directory}"))
    return "\n".join(lines)


def _without_value(result: ResultData) -> str:
    if result.ending is not Ending.TIMEOUT:
        return "no trial has a value"
    if not result.trials:
        return "no trial began, since the start took all of the timeout; pass a longer timeout"
    return "no trial reported a value before the timeout; pass a longer timeout"


def lasted(result: ResultData) -> str:
    """Return how long the run took. It may be more if a driver was killed and recorded no end."""
    return duration(result.seconds) + " or more" * result.is_longer
