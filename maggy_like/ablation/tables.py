"""Columns of pandas, Arrow and Spark tables, told apart by what they have: none of the libraries is imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from maggy_like.errors import ConfigError
from optimizers.checks.near_names import did_you_mean


def columns_of(table: Any) -> tuple[str, ...]:
    """The names of a table's columns, or of a list of names.

    Raises:
        ConfigError: It is no table, or a column has no name.
    """
    names = getattr(table, "column_names", None)  # Arrow, whose `columns` are the data
    if names is None:
        names = getattr(table, "columns", table)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(
            f"data must be a pandas, Arrow or Spark table, or a list of column names, got {type(table).__name__}"
        )
    columns = tuple(names)
    for name in columns:
        if not isinstance(name, str):
            raise ConfigError(f"columns are ablated by name, and one has {name!r} for a name; name it with a string")
    return columns


def without(table: Any, columns: Iterable[str]) -> Any:
    """The table without some of its columns.

    Raises:
        ConfigError: It does not have one of them.
    """
    columns, known = list(columns), columns_of(table)
    for name in columns:
        if name not in known:
            raise ConfigError(f"the table has no column {name!r} to leave out{did_you_mean(name, known)}")
    if hasattr(table, "drop_columns"):  # Arrow
        return table.drop_columns(columns)
    if hasattr(table, "loc"):  # pandas
        return table.drop(columns=columns)
    return table.drop(*columns)  # Spark
