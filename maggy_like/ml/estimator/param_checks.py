"""Checks before any row is read: of the DataFrame's columns, the model, the search and its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType
from torch import nn

from maggy_like.api.lagom import lagom
from maggy_like.api.run import run
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.data import VALIDATION
from maggy_like.ml.estimator.lightning import check_trainer_params
from maggy_like.ml.estimator.network import is_lightning
from maggy_like.ml.estimator.objective import optimizer_class, read_loss
from maggy_like.ml.estimator.plan import SEARCHABLE, TrainingPlan
from maggy_like.ml.spark_columns import check_one
from optimizers.checks import did_you_mean

if TYPE_CHECKING:
    from maggy_like.ml.estimator.params import TrainingParams
    from optimizers.space.domains import Domain


def check_names(df: DataFrame, columns: Mapping[str, Sequence[str]]) -> None:
    """Check that the DataFrame has the columns of each Param: each once, and with one role."""
    roles: dict[str, str] = {}
    for param, named in columns.items():
        for name in named:
            if name not in df.columns:
                near = did_you_mean(name, df.columns)
                raise ConfigError(
                    f"{param} must be a column of the DataFrame, got {name!r}{near}; use one of {', '.join(df.columns)}"
                )
            check_one(df, name)
            if name == VALIDATION and param != "validationIndicatorCol":
                raise ConfigError(f"{param} must not be the reserved name {name!r}; rename the column")
            if name in roles:
                raise ConfigError(
                    f"column {name!r} must have one role, got {roles[name]} and {param}; copy it under another name "
                    f"(df.withColumn('copy', df[{name!r}]))"
                )
            roles[name] = param


def check_indicator(df: DataFrame, name: str) -> None:
    """Check that validationIndicatorCol is boolean."""
    kind = df.schema[name].dataType
    if not isinstance(kind, BooleanType):
        raise DataError(
            f"validationIndicatorCol {name!r} must be boolean, got {kind.simpleString()}; compare it with the value of "
            "rows to validate on (F.col(name) == 1)"
        )


def check_model(plan: TrainingPlan) -> None:
    """Check that it is a model, and has a loss.

    A function may make a Lightning module, which brings its loss. That is only known when it is called.
    """
    model = plan.model
    if not isinstance(model, nn.Module) and not callable(model):
        raise ConfigError(f"model must be a torch module or a function that returns one, got {model!r}")
    check_trainer_params(model, plan.trainer_params)
    if (plan.loss is not None or isinstance(model, nn.Module | type)) and not is_lightning(model):
        _ = plan.losses


_OWN = {
    "block": "omit it, because fit always waits for the model",
    "budget": "use epochs",
    "config": "use modelParams",
    "confirm": "use the Param confirm",
    "max_budget": "use epochs",
    "searchspace": "use search",
    "train_fn": "use model",
}
"""Arguments of ``lagom`` and ``run`` that the Estimator sets, and the remedy."""

_POINTS = 5  # of a range, with its ends: a Param rejects what is beyond an end, or is not an integer
_LISTED = 1000


def check_values(params: TrainingParams, domains: Mapping[str, Domain]) -> None:
    """Check that the Params accept the values of a search; only domains with the name of a Param are checked."""
    of_objects: dict[str, Callable[[Any], Any]] = {"loss": read_loss, "optimizer": optimizer_class}
    for name in domains.keys() & SEARCHABLE.keys():
        convert = of_objects.get(name, params.getParam(name).typeConverter)
        for value in values_of(domains[name]):
            if name == "patience" and value is None:
                continue  # no early stopping
            try:
                taken = convert(value)
                if isinstance(taken, int) and not isinstance(value, int):
                    raise TypeError("must be an integer; use Integer(low, high) or a list of integers")
            except (ConfigError, TypeError, ValueError) as error:
                raise ConfigError(f"search: {name} cannot be {value!r}, of {domains[name]!r}: {error}") from None


def values_of(domain: Domain) -> list[Any]:
    """Return the values of a domain; if there are too many, some of them with both ends."""
    return domain.grid(max(_POINTS, min(domain.size or 0, _LISTED)))


def check_options(params: TrainingParams, is_search: bool) -> None:
    """Check that the run accepts ``runOptions``."""
    given = params._given("runOptions")
    target, name_of = (lagom, "lagom, which searches") if is_search else (run, "run, which trains without a search")
    known = [name for name in inspect.signature(target).parameters if name not in _OWN]
    for name in given:
        if name in _OWN:
            raise ConfigError(f"runOptions must not have {name!r}, which the Estimator sets; {_OWN[name]}")
        if name not in known:
            raise ConfigError(
                f"runOptions must have arguments of maggy_like.{name_of}, got {name!r}{did_you_mean(name, known)}; use "
                f"some of {', '.join(known)}"
            )
    if is_search and not given.get("train_best", True):
        raise ConfigError("runOptions must not have train_best=False, because fit returns a trained model; omit it")
    metric = given.get("metric")
    if metric is not None and not isinstance(metric, str):
        raise ConfigError(
            f"runOptions: metric must be the name of one metric, got {metric!r}, because fit returns one model"
        )


def check_metric(params: TrainingParams, plan: TrainingPlan, losses: Sequence[Any]) -> None:
    """Check that the metric is one that epochs report, whichever of the losses is drawn, and that it compares them.

    ``losses`` are the values of the search, or the only loss.
    """
    metric = params._given("runOptions").get("metric")
    if is_lightning(plan.model) or None in losses:  # only the module knows its metrics
        return
    found = [list(_metrics(params, replace(plan, loss=loss))) for loss in losses]
    reported = [name for name in found[0] if all(name in others for others in found)]
    if len(losses) > 1:
        reported = [name for name in reported if name.removeprefix("validation_") != "loss"]
        if not reported or metric is None or metric.removeprefix("validation_") == "loss":
            remedy = f"use runOptions={{'metric': {reported[-1]!r}}}" if reported else "search with each loss by itself"
            raise ConfigError(
                f"search over loss must have a metric other than the loss, got {', '.join(map(repr, losses))}, because "
                f"values of different losses cannot be compared; {remedy}"
            )
    if metric is not None and metric not in reported:
        raise ConfigError(
            f"runOptions: metric must be one that epochs report, got {metric!r}{did_you_mean(metric, reported)}; use "
            f"one of {', '.join(reported)}{_why(metric, reported)}"
        )


def _metrics(params: TrainingParams, plan: TrainingPlan) -> Iterable[str]:
    """Return the metrics of an epoch."""
    found = ["loss"]
    for loss, label in zip(plan.losses, plan.labels, strict=True):
        if loss.kind in ("classes", "binary", "probability"):
            found.append("accuracy" if len(plan.labels) == 1 else f"accuracy_{label}")
    yield from found
    if params._given("validationFraction") or params._given("validationIndicatorCol"):
        yield from (f"validation_{name}" for name in found)


def _why(metric: str, reported: Iterable[str]) -> str:
    if metric.startswith("validation_") and metric.removeprefix("validation_") in reported:
        return ", or set rows apart by validationFraction or validationIndicatorCol"
    return ""
