"""Statistics of each column that reveal wrong data before a training starts, in one pass of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, FloatType, IntegralType, NumericType, StructType

from maggy_like.ml.columns.spark_columns import quoted


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of one column.

    Attributes:
        nulls: Number of rows in which it is null, or contains a null at any depth.
        not_a_number: Number of rows in which it is or contains a NaN or an infinity.
        shortest: Smallest length of its arrays; None for a column without arrays.
        longest: Largest length of its arrays.
        shortest_inner: Smallest length of the arrays within its arrays, for each level of them.
        longest_inner: Largest length of these.
        least: Smallest number, also in arrays; None for a column without numbers, for vectors, or if all are null.
        greatest: Largest number.
        extremes: For arrays of whole numbers, a row with the smallest number and one with the largest.
        total: Sum of its numbers; None for a column of arrays.
        fractions: Number of rows in which it is not a whole number.
        largest: Largest absolute value of its numbers, also in arrays; None for a column without numbers.
    """

    nulls: int
    not_a_number: int
    shortest: int | None = None
    longest: int | None = None
    shortest_inner: Sequence[int | None] = ()
    longest_inner: Sequence[int | None] = ()
    least: float | None = None
    greatest: float | None = None
    extremes: Sequence[Any] = ()
    total: float | None = None
    fractions: int = 0
    largest: float | None = None


@dataclass(frozen=True)
class Statistics:
    """Statistics of a DataFrame.

    Attributes:
        rows: Number of rows.
        columns: Statistics of each column, by name.
    """

    rows: int
    columns: dict[str, ColumnStatistics]


def statistics_of(df: DataFrame, columns: Sequence[str]) -> Statistics:
    """Compute statistics of columns in one Spark job; vectors are structs of their parts."""
    measured: list[tuple[str, str, Column]] = []
    for name in columns:
        measured += [(name, key, value) for key, value in _measures(df, name).items()]
    row = df.agg(F.count(F.lit(1)), *(value for _, _, value in measured)).first()
    assert row is not None  # an aggregate without groups has one row
    found: dict[str, dict[str, Any]] = {name: {} for name in columns}
    for (name, key, _), value in zip(measured, row[1:], strict=True):
        found[name][key] = value
    return Statistics(int(row[0]), {name: ColumnStatistics(**values) for name, values in found.items()})


def weights_of(df: DataFrame, column: str, weight: str | None) -> dict[int, float]:
    """Return the total weight of the rows for each value of an integer column; their number if rows have no weight."""
    amount = F.sum(F.lit(1.0) if weight is None else F.col(quoted(weight)).cast("double"))
    rows = df.groupBy(F.col(quoted(column)).cast("long").alias("value")).agg(amount.alias("amount")).collect()
    return {int(row["value"]): float(row["amount"]) for row in rows}


def _measures(df: DataFrame, name: str) -> dict[str, Column]:
    kind, column = df.schema[name].dataType, F.col(quoted(name))
    wrong, nan = column.isNull(), F.lit(False)
    measures: dict[str, Column] = {}
    if isinstance(kind, ArrayType):
        inner, numbers = kind.elementType, column
        wrong, lengths = wrong | F.exists(column, lambda value: value.isNull()), list[Column]()
        while isinstance(inner, ArrayType):
            lengths.append(F.transform(numbers, lambda value: F.size(value)))
            inner, numbers = inner.elementType, F.flatten(numbers)
            wrong = wrong | F.exists(numbers, lambda value: value.isNull())
        if lengths:
            measures["shortest_inner"] = F.array(*(F.min(F.array_min(it)) for it in lengths))
            measures["longest_inner"] = F.array(*(F.max(F.array_max(it)) for it in lengths))
        if isinstance(inner, DoubleType | FloatType):
            nan = F.exists(numbers, _is_no_number)
        if isinstance(inner, NumericType):
            least, greatest = F.array_min(numbers).cast("double"), F.array_max(numbers).cast("double")
            measures |= {"least": F.min(least), "greatest": F.max(greatest)}
            measures["largest"] = F.greatest(F.abs(measures["least"]), F.abs(measures["greatest"]))
            if isinstance(inner, IntegralType):
                measures["extremes"] = F.array(F.min_by(column, least), F.max_by(column, greatest))
        measures |= {"shortest": F.min(F.size(column)), "longest": F.max(F.size(column))}
    elif isinstance(kind, StructType):  # a vector's parts: a sparse one has a size, a dense one only values
        numbers = column["values"]
        wrong, nan = wrong | numbers.isNull(), F.exists(numbers, _is_no_number)
        length = F.coalesce(column["size"], F.size(numbers))
        measures |= {"shortest": F.min(length), "longest": F.max(length)}
    elif isinstance(kind, NumericType):
        number = column.cast("double")
        nan = _is_no_number(number)
        measures |= {"least": F.min(number), "greatest": F.max(number), "total": F.sum(number)}
        measures["largest"] = F.max(F.abs(number))
        measures["fractions"] = F.count_if(number != F.rint(number))  # floor has no result for what is past 64 bits
    return {"nulls": F.count_if(wrong), "not_a_number": F.count_if(F.coalesce(nan, F.lit(False)))} | measures


def _is_no_number(value: Column) -> Column:
    """Whether it is NaN or infinite, which makes a network's weights NaN."""
    return F.isnan(value) | (F.abs(value) == float("inf"))
