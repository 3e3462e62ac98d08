"""Checks of the rows of a training, and what is counted in them: how many there are, and what they weigh."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from maggy_like.errors import DataError
from maggy_like.ml.columns.column import Column, columns_of_arrow
from maggy_like.ml.data.prepared import VALIDATION, PreparedData, schema_of
from maggy_like.ml.data.statistics import Statistics, statistics_of, weights_of
from maggy_like.ml.estimator.checks import (
    check_magnitudes,
    check_rows,
    check_sample,
    check_weight,
    fit_to_rows,
    remedy,
)
from maggy_like.ml.estimator.names import Kind
from maggy_like.ml.estimator.objective import decoded
from maggy_like.ml.estimator.plan import Data, TrainingPlan
from maggy_like.ml.loader.parquet_loader import ParquetLoader


@dataclass(frozen=True)
class CheckedData:
    """What a training needs to know of its data.

    Attributes:
        plan: The training with its data.
        inputs: What the inputs of the network are.
        outputs: What its outputs are, by label.
        remedy: What to do where no loss is a finite number.
    """

    plan: TrainingPlan
    inputs: tuple[Column, ...]
    outputs: dict[str, Kind]
    remedy: str


def check_data(
    plan: TrainingPlan,
    config: Mapping[str, Any],
    df: DataFrame,
    prepared: PreparedData,
    is_balanced: bool,
    given: Sequence[str] = (),
) -> CheckedData:
    """Check the rows against the plan, with one pass of Spark over what was written.

    Args:
        config: Some configuration of the search, with which the network is tried.
        is_balanced: Whether classes are to be weighed by how many rows they have.
        given: Params and names of the search that ask something of loss or optimizer.

    Returns:
        The plan with its data and with the weights of classes and rows, and what the network takes and gives.

    Raises:
        UserError: The rows, the network or the loss do not fit each other; the column is named.
    """
    written = prepared.rows(df)
    train = written.where(F.col(VALIDATION) == "false") if prepared.is_split else written
    found = statistics_of(train, plan.columns)
    check_rows(found)
    held = 0
    if prepared.is_split:
        validation = statistics_of(written.where(F.col(VALIDATION) == "true"), plan.columns)
        if not validation.rows:
            raise DataError(f"no row was set apart to validate on, of {found.rows}; set more apart, or none at all")
        check_rows(validation, "the validation's part")
        held = validation.rows
        found = _together(found, validation)
        check_rows(found)
    if plan.weight is not None:
        check_weight(plan.weight, found.columns[plan.weight])
    plan = replace(plan, data=Data(prepared.train, prepared.validation, found.rows, held))
    loader = ParquetLoader(
        list(prepared.train), plan.columns, batch_size=min(2, found.rows), fractions="float64", shuffle=False
    )
    if loader.rows != found.rows:
        raise DataError(
            f"Spark counts {found.rows} rows to train on, and its files have {loader.rows}; write the DataFrame to a "
            "new folder (df.write.parquet) and read that"
        )
    batch = decoded(next(iter(loader)), plan.decode, torch.device("cpu"))
    fitting, precision = fit_to_rows(plan.with_config(config), batch)
    check_magnitudes(found, fitting, batch, precision)
    shapes = check_sample(fitting, batch, found, given)
    plan = replace(plan, as_fractions=fitting.as_fractions, least_share=fitting.least_share)
    inputs = columns_of_arrow(schema_of(prepared), plan.features)
    shaped = tuple(it if it.shape is None else it.with_shape(tuple(batch[it.name].shape[1:])) for it in inputs)
    taken = tuple(replace(it, dtype="float64") if it.name in plan.as_fractions else it for it in shaped)
    kinds: list[Kind] = ["other"] * len(plan.labels) if shapes is None else [loss.kind for loss in plan.losses]
    classes = shapes[0][0] if shapes is not None and kinds[0] == "classes" else 2
    for number, shape in enumerate(shapes or ()):
        is_one = len(shape) == 1 if kinds[number] == "classes" else math.prod(shape) == 1
        if not is_one:
            kinds[number] = "other"  # several numbers, or classes at several positions, which are no one value
    plan = _weighed(plan, train, found, classes, is_balanced)
    return CheckedData(plan, taken, dict(zip(plan.labels, kinds, strict=True)), remedy(found, plan, precision))


def _weighed(plan: TrainingPlan, train: DataFrame, found: Statistics, classes: int, is_balanced: bool) -> TrainingPlan:
    """The plan with the factor that makes the rows' mean weight 1, and with weights of balanced classes."""
    if not is_balanced and plan.class_weights is None:
        total = None if plan.weight is None else found.columns[plan.weight].total
        return plan if total is None else replace(plan, weight_scale=found.rows / total)
    amounts = weights_of(train, plan.labels[0], plan.weight)
    weights = plan.class_weights
    if is_balanced:
        mean = sum(amounts.values()) / len(amounts)
        weights = tuple(mean / amounts[label] if amounts.get(label) else 1.0 for label in range(classes))
    assert weights is not None
    total = sum(weights[label] * amount for label, amount in amounts.items())
    if not total:
        raise DataError(f"classWeights {list(weights)} weigh all rows of {plan.labels[0]!r} with 0; some must count")
    plan = replace(plan, class_weights=weights, weight_scale=found.rows / total)
    _ = plan.losses  # whose loss must be one for each row now
    return plan


def _together(train: Statistics, validation: Statistics) -> Statistics:
    """Statistics with the shapes and labels of the rows to validate on too; the rest is of those to train on."""
    columns = {}
    for name, one in train.columns.items():
        other = validation.columns[name]
        columns[name] = replace(
            one,
            shortest=_of_both(min, one.shortest, other.shortest),
            longest=_of_both(max, one.longest, other.longest),
            least=_of_both(min, one.least, other.least),
            greatest=_of_both(max, one.greatest, other.greatest),
            fractions=one.fractions + other.fractions,
            largest=_of_both(max, one.largest, other.largest),
        )
    return Statistics(train.rows, columns)


def _of_both(choose: Callable[..., Any], one: float | None, other: float | None) -> Any:
    return None if one is None or other is None else choose(one, other)
