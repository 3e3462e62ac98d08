"""Rows as a table of pandas, in which numbers are what they were."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def as_frame(rows: Sequence[Mapping[str, Any]], columns: list[str] | None = None) -> pandas.DataFrame:
    """Make a table of rows.

    Integers and booleans remain what they are in a column that some rows lack, and integers among floats are not
    rounded. pandas would turn the former into floats and objects.
    """
    import pandas

    table = pandas.DataFrame(rows, columns=columns)
    for name in table.columns:
        values = [row.get(name) for row in rows]
        kind = _nullable({type(value) for value in values}, values)
        if kind is not None:
            table[name] = pandas.Series(values, dtype=kind)
    return table


def _nullable(types: set[type], values: Sequence[Any]) -> str | None:
    """Return the type of a column whose values pandas would change; None for all other columns."""
    given = types - {type(None)}
    if given == {bool}:
        return "boolean" if types != given else None
    if int not in given or not given <= {int, float}:
        return None
    whole = [value for value in values if type(value) is int]
    if given == {int}:
        fits = all(-(1 << 63) <= value < 1 << 63 for value in whole)
        return None if types == given else "Int64" if fits else "object"
    return None if all(abs(value) <= _EXACT for value in whole) else "object"


_EXACT = 2**53
"""Up to this, every integer is a float."""


def param_columns(fixed: Collection[str], names: Collection[str]) -> dict[str, str]:
    """Return the column of each parameter: its name, or ``param_NAME`` if that is one of the ``fixed`` columns."""
    columns = {}
    for name in names:
        column = name
        while column in fixed or (column != name and column in names):
            column = f"param_{column}"
        columns[name] = column
    return columns
