"""From an Estimator and a DataFrame to a trained network: check, write the data once, train or search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from torch import nn

from maggy_like.api.lagom import lagom
from maggy_like.api.run import run
from maggy_like.errors import ConfigError, TrainingError
from maggy_like.ml.columns.column import Column
from maggy_like.ml.columns.spark_columns import columns_of_spark
from maggy_like.ml.data.prepared import PreparedData, prepare_data
from maggy_like.ml.estimator.checks import check_indicator, check_loss_given, check_names
from maggy_like.ml.estimator.data_checks import check_data
from maggy_like.ml.estimator.names import Kind
from maggy_like.ml.estimator.network import build_network, is_lightning
from maggy_like.ml.estimator.plan import Data, TrainingPlan, home_of
from maggy_like.ml.estimator.train import outcome, search_network, train_network
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.ml.estimator.params import TrainingParams
    from maggy_like.results.result import Result


@dataclass(frozen=True)
class Fitted:
    """What came of a fit.

    Attributes:
        network: The network with the weights that were kept, on the CPU.
        inputs: What its inputs are.
        outputs: What its outputs are, by label.
        history: Metrics of each epoch.
        best_epoch: The epoch with the lowest loss.
        config: The best configuration, where there was a search.
        result: The search's result, where there was one.
    """

    network: nn.Module
    inputs: tuple[Column, ...]
    outputs: dict[str, Kind]
    history: list[dict[str, float]]
    best_epoch: int | None
    config: dict[str, Any]
    result: Result | None


def fit_network(params: TrainingParams, df: DataFrame) -> Fitted:
    """Train on a DataFrame, or search for the best training first.

    Raises:
        UserError: A Param or a column is wrong; this is found before a worker starts.
        TrainingError: The training failed.
    """
    plan = _plan_of(params)
    space = _space_of(params, plan)
    prepared = _prepare(params, df, plan)
    is_balanced = params._given("classWeights") == "balanced"
    checked = check_data(plan, space, df, prepared, params._given("workers"), is_balanced)
    plan, kind = checked.plan, params._given("outputKind")
    options = {
        "workers": params._given("workers"),
        "engine": params._given("engine"),
        "directory": params._given("directory"),
        **params._given("runOptions"),
    }
    epochs = params._given("epochs")
    if space is None:
        found, result, config = run(partial(train_network, plan), budget=epochs, **options), None, {}
    else:
        named = {"metric": "objective", "direction": "min", "seed": plan.seed, "train_best": True}
        result = lagom(partial(search_network, plan), space, max_budget=epochs, **named | options)
        if result.training is None or result.best_config is None:
            raise TrainingError(
                f"the search ended ({result.ending}) before the best configuration was trained: {result}"
            )
        found, config = outcome(result.training.load()), dict(result.best_config)
    best = plan.with_config(config)
    network = build_network(best.model, best.model_params, best.seed)
    network.load_state_dict(found["network"])
    return Fitted(
        network.eval(),
        checked.inputs,
        checked.outputs if kind is None else dict.fromkeys(checked.outputs, kind),
        found["history"],
        found["best_epoch"],
        config,
        result,
    )


def _plan_of(params: TrainingParams) -> TrainingPlan:
    """The training that the Params ask for; where its rows are comes later."""
    optimizer = params._given("optimizer")
    has_own_rate = not isinstance(optimizer, str | type) and not params.isSet("learningRate")
    weights = params._given("classWeights")
    plan = TrainingPlan(
        model=params._given("model"),
        loss=params._given("loss"),
        features=tuple(params._given("featuresCol")),
        labels=tuple(params._given("labelCol")),
        data=Data((), (), 0),
        model_params=params._given("modelParams"),
        optimizer=optimizer,
        optimizer_params=params._given("optimizerParams"),
        rate=None if has_own_rate else params._given("learningRate"),
        weight=params._given("weightCol"),
        class_weights=None if weights in (None, "balanced") else tuple(weights),  # balanced: once rows are counted
        batch_size=params._given("batchSize"),
        patience=params._given("patience"),
        min_delta=params._given("minDelta"),
        keep_best=params._given("keepWeights") == "best",
        freeze=tuple(params._given("freeze")),
        callbacks=tuple(params._given("callbacks")),
        seed=params._given("seed"),
    )
    check_loss_given(plan)
    if weights is not None and (len(plan.labels) > 1 or is_lightning(plan.model)):
        raise ConfigError("classWeights need one column of labels, and a loss that the Estimator computes")
    if params._given("validationFraction") and params._given("validationIndicatorCol"):
        raise ConfigError("validationFraction and validationIndicatorCol both choose the rows to validate on; pass one")
    return plan


def _space_of(params: TrainingParams, plan: TrainingPlan) -> SearchSpace | None:
    """The search space, if there is a search, each of whose names belongs to something."""
    given = params._given("search")
    if not given:
        return None
    space = given if isinstance(given, SearchSpace) else SearchSpace(given)
    for name in space.names:
        home_of(name, plan)
    return space


def _prepare(params: TrainingParams, df: DataFrame, plan: TrainingPlan) -> PreparedData:
    """The columns of the training in Parquet files, with vectors as arrays."""
    indicator = params._given("validationIndicatorCol")
    roles = {"featuresCol": plan.features, "labelCol": plan.labels}
    if plan.weight is not None:
        roles["weightCol"] = (plan.weight,)
    if indicator is not None:
        roles["validationIndicatorCol"] = (indicator,)
    check_names(df, roles)
    if indicator is not None:
        check_indicator(df, indicator)
    columns_of_spark(df.schema, plan.columns)  # refuses text, dates and the like
    return prepare_data(
        df,
        plan.columns,
        f"{str(params._given('directory')).rstrip('/')}/data",
        validation_column=indicator,
        validation_fraction=params._given("validationFraction"),
        seed=plan.seed,
        keep=params._given("keepData"),
    )
