"""A result as tables of pandas: a row a trial, a row a measurement."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from maggy_like.extras import require
from maggy_like.protocol.values import attribute_names
from maggy_like.results.data import ResultData
from optimizers.core.trial import Trial
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    import pandas


def trials_table(result: ResultData) -> pandas.DataFrame:
    """A row a trial (see :meth:`Result.to_pandas`)."""
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
    """The rows of the five best trials, or of the Pareto set; what is not finite ranks worst, whichever way it goes."""
    import pandas

    if result.others and len(table):
        table = table[table["trial"].isin([trial.id for trial in result.pareto])]
    if len(table):
        by = f"value_{result.objective}" if result.others else "value"
        losses = pandas.to_numeric(table[by]) * (1.0 if result.direction == "min" else -1.0)
        table = table.loc[losses.where(losses.abs() < math.inf).sort_values(kind="stable").index]
    return table if result.others else table.head(5)


def curves_table(result: ResultData) -> pandas.DataFrame:
    """A row a measurement (see :meth:`Result.curves`)."""
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
    """The objectives of a trial, by their columns."""
    if not result.others:
        return {"value": trial.value, "value_step": trial.value_step}
    names = (result.objective, *(name for _, name in result.others))
    values = trial.values or (None,) * len(names)
    return {f"value_{name}": value for name, value in zip(names, values, strict=True)}


def _param_column(name: str, fixed: Collection[str], space: SearchSpace) -> str:
    """The column of a parameter: its name, or ``param_NAME`` where that is taken."""
    column = name
    while column in fixed or (column != name and column in space.domains):
        column = f"param_{column}"
    return column
