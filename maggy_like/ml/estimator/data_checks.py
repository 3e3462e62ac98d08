"""Checks of the rows of a training: what Spark counts in all of them, and what the network makes of a few."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column, columns_of_arrow
from maggy_like.ml.data import (
    VALIDATION,
    ColumnStatistics,
    PreparedData,
    Statistics,
    schema_of,
    statistics_of,
    weights_of,
)
from maggy_like.ml.estimator.batch_checks import (
    check_magnitudes,
    check_sample,
    check_whole_numbers,
    fit_to_rows,
    remedy,
)
from maggy_like.ml.estimator.objective import decoded
from maggy_like.ml.estimator.plan import Data, TrainingPlan, check_batches
from maggy_like.ml.inference.predictor import Kind
from maggy_like.ml.loader.parquet_loader import ParquetLoader


@dataclass(frozen=True)
class CheckedData:
    """Results of the checks of a training's data."""

    plan: TrainingPlan  # with its data
    inputs: tuple[Column, ...]  # of the network
    outputs: dict[str, Kind]  # kinds of the network's outputs, by label
    remedy: str  # for the case that no loss is finite


def check_data(
    plan: TrainingPlan,
    config: Mapping[str, Any],
    df: DataFrame,
    prepared: PreparedData,
    is_balanced: bool,
    given: Sequence[str] = (),
) -> CheckedData:
    """Check the rows against the plan, with one pass of Spark over the written data.

    The result has the plan with its data and the weights of classes and rows, and the network's inputs and outputs.
    ``config`` is any configuration of the search, to try the network with. If ``is_balanced``, classes are weighted by
    their number of rows. ``given`` are the Params and names of the search that concern loss or optimizer.
    """
    written = prepared.rows(df)
    train = written.where(F.col(VALIDATION) == "false") if prepared.is_split else written
    found = statistics_of(train, plan.columns)
    validation, held = None, 0
    if prepared.is_split:
        validation = statistics_of(written.where(F.col(VALIDATION) == "true"), plan.columns)
        if validation.rows and not found.rows:
            raise DataError(
                f"the training rows must be at least 1, got 0 of {validation.rows}; set fewer rows apart to validate on"
            )
    check_rows(found)
    if validation is not None:
        if not validation.rows:
            raise DataError(
                f"the validation rows must be at least 1, got 0 of {found.rows}; set more rows apart, or none at all"
            )
        check_rows(validation, "the validation part")
        if plan.weight is not None:
            check_weight(plan.weight, validation.columns[plan.weight], "rows to validate on")
        held = validation.rows
        found = _together(found, validation)
        check_rows(found)
    if plan.weight is not None:
        check_weight(plan.weight, found.columns[plan.weight])
    if is_balanced or plan.class_weights is not None:
        check_classes(plan.labels[0], found.columns[plan.labels[0]], plan.labels[0] in plan.decode)
    plan = replace(plan, data=Data(prepared.train, prepared.validation, found.rows, held))
    check_batches(plan.with_config(config))
    loader = ParquetLoader(
        list(prepared.train), plan.columns, batch_size=min(2, found.rows), fractions="float64", shuffle=False
    )
    if loader.rows != found.rows:
        raise DataError(
            f"the Parquet files must have the {found.rows} training rows that Spark counts, got {loader.rows}; write "
            "the DataFrame to a new directory (df.write.parquet) and read that"
        )
    batch = decoded(next(iter(loader)), plan.decode, torch.device("cpu"))
    with _uncompiled():
        fitting, precision = fit_to_rows(plan.with_config(config), batch)
        check_magnitudes(found, fitting, batch, precision)
        shapes = check_sample(fitting, batch, found, given)
        check_whole_numbers(fitting, batch, found)
    plan = replace(plan, as_fractions=fitting.as_fractions, least_share=fitting.least_share)
    inputs = columns_of_arrow(schema_of(prepared), plan.features)
    shaped = tuple(it if it.shape is None else it.with_shape(tuple(batch[it.name].shape[1:])) for it in inputs)
    taken = tuple(replace(it, dtype="float64") if it.name in plan.as_fractions else it for it in shaped)
    kinds: list[Kind] = ["other"] * len(plan.labels) if shapes is None else [loss.kind for loss in plan.losses]
    classes = shapes[0][0] if shapes is not None and kinds[0] == "classes" else 2
    for number, shape in enumerate(shapes or ()):
        is_one = len(shape) == 1 if kinds[number] == "classes" else math.prod(shape) == 1
        if not is_one:
            kinds[number] = "other"  # several numbers, or classes at several positions, which are not one value
    plan = _weighed(plan, train, found, classes, is_balanced)
    return CheckedData(plan, taken, dict(zip(plan.labels, kinds, strict=True)), remedy(found, plan, precision))


def check_rows(found: Statistics, where: str = "the DataFrame") -> None:
    """Check that there are rows, without null, NaN and infinity, and with arrays of one length, at any depth."""
    if not found.rows:
        raise DataError(f"{where} has no rows to train on")
    for name, column in found.columns.items():
        for count, what in ((column.nulls, "null"), (column.not_a_number, "NaN or infinity")):
            if count:
                is_array = column.longest is not None
                how = "" if is_array else f" (df.dropna(subset=[{name!r}]), pyspark.ml.feature.Imputer)"
                raise DataError(
                    f"column {name!r} must not be or contain {what}, got {count} such rows of {found.rows}; drop or "
                    f"fill them before fit{how}"
                )
        if column.shortest != column.longest:
            raise DataError(
                f"column {name!r} must have arrays of equal length, got {column.shortest} to {column.longest} "
                "elements; pad or cut them before fit"
            )
        for shortest, longest in zip(column.shortest_inner, column.longest_inner, strict=True):
            if shortest != longest:
                raise DataError(
                    f"column {name!r} must have arrays of equal length within its arrays, got {shortest} to {longest} "
                    "elements; pad or cut them before fit"
                )


def check_weight(name: str, found: ColumnStatistics, rows: str = "rows") -> None:
    """Check that weights are plain numbers, not negative and not all 0; the error calls the rows ``rows``."""
    if found.total is None:
        raise DataError(
            f"weightCol {name!r} must have one number in each row; cast or compute one (df.withColumn) before fit"
        )
    if found.least is None or found.least < 0:
        raise DataError(f"weightCol {name!r} must have weights of at least 0, got {found.least}")
    if not found.total:
        raise DataError(f"weightCol {name!r} must have a weight above 0 in some row, got 0 in all {rows}")


def check_classes(name: str, found: ColumnStatistics, is_decoded: bool) -> None:
    """Check that each row has one class, by which it is weighted."""
    if found.shortest is not None or is_decoded:
        raise ConfigError(
            f"classWeights must be used with a number as the class of each row, got "
            f"{'bytes' if is_decoded else 'arrays'} in labelCol {name!r}; use a loss with weights, such as "
            "CrossEntropyLoss(weight=...)"
        )
    if found.fractions:
        raise DataError(
            f"classWeights must be used with an integer as the class of each row, got {found.fractions} other numbers "
            f"in labelCol {name!r}; index the classes (pyspark.ml.feature.StringIndexer), or use weightCol"
        )


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Compute compiled networks as plain ones, since a few rows are not worth the compilation."""
    if "torch._dynamo" not in sys.modules:  # whose import takes a second
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


def _weighed(plan: TrainingPlan, train: DataFrame, found: Statistics, classes: int, is_balanced: bool) -> TrainingPlan:
    """Set the factor that makes the mean weight of the rows 1, and the weights of balanced classes."""
    if not is_balanced and plan.class_weights is None:
        total = None if plan.weight is None else found.columns[plan.weight].total
        return plan if total is None else replace(plan, weight_scale=found.rows / total)
    amounts = weights_of(train, plan.labels[0], plan.weight)
    weights = plan.class_weights
    if is_balanced:
        mean = sum(amounts.values()) / len(amounts)
        weights = tuple(mean / amounts[label] if amounts.get(label) else 1.0 for label in range(classes))
    assert weights is not None
    plan = replace(plan, class_weights=weights)
    _ = plan.losses  # whose loss must be over these classes, and one for each row now
    total = sum(weights[label] * amount for label, amount in amounts.items())
    if not total:
        raise DataError(
            f"classWeights must have a weight above 0 for some class in {plan.labels[0]!r}, got {list(weights)}"
        )
    return replace(plan, weight_scale=found.rows / total)


def _together(train: Statistics, validation: Statistics) -> Statistics:
    """Merge statistics: shapes and labels of the training and validation rows, the rest of the training rows only."""
    columns = {}
    for name, one in train.columns.items():
        other = validation.columns[name]
        columns[name] = replace(
            one,
            shortest=_of_both(min, one.shortest, other.shortest),
            longest=_of_both(max, one.longest, other.longest),
            shortest_inner=[_of_both(min, *it) for it in zip(one.shortest_inner, other.shortest_inner, strict=True)],
            longest_inner=[_of_both(max, *it) for it in zip(one.longest_inner, other.longest_inner, strict=True)],
            extremes=[*one.extremes, *other.extremes],
            least=_of_both(min, one.least, other.least),
            greatest=_of_both(max, one.greatest, other.greatest),
            fractions=one.fractions + other.fractions,
            largest=_of_both(max, one.largest, other.largest),
        )
    return Statistics(train.rows, columns)


def _of_both(choose: Callable[..., Any], one: float | None, other: float | None) -> Any:
    return None if one is None or other is None else choose(one, other)
