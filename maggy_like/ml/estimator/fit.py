"""From an Estimator and a DataFrame to a trained network: check, write the data once, then train or search."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyspark.sql import DataFrame
from torch import nn

from maggy_like.api.lagom import lagom
from maggy_like.api.run import run
from maggy_like.api.run_settings import choose_engine
from maggy_like.errors import ConfigError, TrainingError
from maggy_like.ml.columns import Column, fractions_of, with_fractions
from maggy_like.ml.data import PreparedData, prepare_data
from maggy_like.ml.estimator.data_checks import CheckedData, check_data
from maggy_like.ml.estimator.network import build_network, is_lightning, make_portable
from maggy_like.ml.estimator.objective import arguments_of, check_rate, optimizer_class
from maggy_like.ml.estimator.param_checks import (
    check_indicator,
    check_metric,
    check_model,
    check_names,
    check_options,
    check_values,
    values_of,
)
from maggy_like.ml.estimator.params import check_room, made_columns
from maggy_like.ml.estimator.plan import (
    Data,
    TrainingPlan,
    check_precision,
    check_ranks,
    home_of,
    loss_name,
    most_ranks,
    outcome,
)
from maggy_like.ml.estimator.train import search_network, train_network
from maggy_like.ml.inference.predictor import Kind
from maggy_like.ml.loader.parquet_loader import check_fits
from maggy_like.ml.spark_columns import columns_of_spark
from maggy_like.protocol.endings import Ending
from maggy_like.spark.connection import setting
from maggy_like.spark.engine.engine import SparkEngine
from optimizers.core.trial import TrialState
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.ml.estimator.params import TrainingParams
    from maggy_like.results.result import Result


_OF_LOSS_AND_OPTIMIZER = (
    "classWeights",
    "learningRate",
    "loss",
    "lrScheduler",
    "lrSchedulerInterval",
    "lrSchedulerParams",
    "optimizer",
    "optimizerParams",
)


@dataclass(frozen=True)
class Fitted:
    """Result of a fit."""

    network: nn.Module  # with the weights that were kept, on the CPU
    inputs: tuple[Column, ...]  # of the network
    outputs: dict[str, Kind]  # kinds of the network's outputs, by label
    history: list[dict[str, float]]  # metrics of each epoch
    best_epoch: int | None  # with the lowest loss
    config: dict[str, Any]  # trained configuration of a search: the best one, or with ``confirm`` the recommended one
    result: Result | None  # of the search, if there was one


def fit_network(params: TrainingParams, df: DataFrame) -> Fitted:
    """Train on a DataFrame, or search for the best training first.

    A wrong Param or column raises UserError before a worker starts. TrainingError is raised if the training failed, no
    epoch had a finite loss, or the search ended before the best configuration was trained; after a search, its
    ``result`` is that of the search. After Ctrl-C, the message of KeyboardInterrupt says how to resume.
    """
    plan = plan_of(params)
    space = space_of(params, plan, {})
    return train_checked(params, plan, {(): prepare_rows(params, plan, space, df, {})}, space)


def prepare_rows(
    params: TrainingParams, plan: TrainingPlan, space: SearchSpace | None, df: DataFrame, fixed: Mapping[str, Any]
) -> CheckedData:
    """Write the rows to Parquet files if necessary, and check them against the network and the loss.

    ``fixed`` are the values of the search space that belong to these rows.
    """
    prepared = _prepare(params, df, plan)
    config = {} if space is None else {**space.sample(np.random.default_rng(plan.seed)), **fixed}
    is_balanced = params._given("classWeights") == "balanced"
    given = [name for name in _OF_LOSS_AND_OPTIMIZER if params.isSet(name)]
    searched = params._given("search") or {}
    homes = {} if space is None else homes_of(searched, space, plan)
    given += [name for name in searched if name in _OF_LOSS_AND_OPTIMIZER or homes[name] == "optimizer"]
    checked = check_data(plan, config, df, prepared, is_balanced, given)
    check_room(df, made_columns(params, _kinds(params, checked)))
    if _trains_here(params._given("engine"), df):  # elsewhere only a worker knows its memory
        check_fits(checked.inputs, plan.with_config(config).batch_size)
        check_precision(plan.precision, torch.device("cuda" if torch.cuda.device_count() else "cpu"))
    return checked


def _trains_here(engine: Any, df: DataFrame) -> bool:
    """Whether the workers are on this machine."""
    if isinstance(choose_engine(engine), SparkEngine):
        return hasattr(df, "_jdf") and setting(df.sparkSession, "spark.master", "").startswith("local")
    return True


def train_checked(
    params: TrainingParams,
    plan: TrainingPlan,
    checked: Mapping[tuple[Any, ...], CheckedData],
    space: SearchSpace | None,
) -> Fitted:
    """Train on checked rows, or search and train the best configuration.

    ``checked`` has the data by the values of ``plan.stage_params``.
    """
    one = next(iter(checked.values()))
    plan = replace(plan, variants={key: it.plan for key, it in checked.items()}) if plan.stage_params else one.plan
    options = {
        "workers": params._given("workers"),
        "engine": params._given("engine"),
        "directory": params._given("directory"),
        **params._given("runOptions"),
    }
    options |= _engine_and_workers(options, plan, checked, space)
    epochs = params._given("epochs")
    if space is None:
        found = run(partial(train_network, plan), budget=epochs, **options)
        return _fitted(params, plan, checked, found, {}, None)
    named: dict[str, Any] = {"seed": plan.seed, "train_best": True, "confirm": params._given("confirm")}
    if options.get("metric") is None:  # another metric has its own direction
        named |= {"metric": loss_name(one.plan), "direction": "min"}
    result = lagom(partial(search_network, plan), space, max_budget=epochs, **named | options)
    try:
        training = result.training
        if training is None or training.trial.state is not TrialState.COMPLETED:
            raise _no_model(result, one.remedy)
        return _fitted(params, plan, checked, outcome(training.load()), dict(training.trial.config), result)
    except BaseException as error:
        error.__dict__["result"] = result  # hours of a search are not lost by what follows it
        raise


def _engine_and_workers(
    options: Mapping[str, Any],
    plan: TrainingPlan,
    checked: Mapping[tuple[Any, ...], CheckedData],
    space: SearchSpace | None,
) -> dict[str, Any]:
    """Return the engine and, if the rows cannot be shared by all its workers, a smaller number of workers.

    If more workers were requested than can share the rows, or than can train the best configuration, raise ConfigError.
    """
    engine, workers, most = choose_engine(options["engine"]), options["workers"], options.get("max_workers")
    if not all(it is None or (isinstance(it, int) and it > 0) for it in (workers, most)):
        return {}  # the run says what is wrong
    if workers is None and engine.is_elastic:
        return {}  # the run asks for a number
    size = workers or min(engine.default_workers(), most or sys.maxsize)
    batch_size = plan.batch_size if space is None else _least_batch_size(space, plan.batch_size)
    fitting = size
    for plan in (it.plan for it in checked.values()):
        shape = {"held": plan.data.held, "least": plan.least_share}
        if workers is None and space is None:
            fitting = min(fitting, most_ranks(plan.data.rows, batch_size, **shape))
        check_ranks(plan.data.rows, fitting, batch_size, **shape)
    return {"engine": engine} if fitting == size else {"engine": engine, "workers": fitting}


def _least_batch_size(space: SearchSpace, otherwise: int) -> int:
    return min(values_of(space.domains["batchSize"])) if "batchSize" in space.domains else otherwise


def _fitted(
    params: TrainingParams,
    plan: TrainingPlan,
    checked: Mapping[tuple[Any, ...], CheckedData],
    found: Mapping[str, Any],
    config: dict[str, Any],
    result: Result | None,
) -> Fitted:
    """Build the network with the weights that a training has found."""
    best = plan.with_config(config)
    data = checked[tuple(config[name] for name in plan.stage_params)]
    _check_losses(found, loss_name(best), data.remedy)
    network = build_network(best.model, best.model_params, best.seed)
    network.load_state_dict(found["network"])
    network._compiled_call_impl = None  # the model has the plain network
    make_portable(network, best.model, best.model_params, best.seed)
    fractions = fractions_of(network)
    return Fitted(
        network.eval(),
        with_fractions(data.inputs, fractions),
        _kinds(params, data),
        found["history"],
        found["best_epoch"],
        config,
        result,
    )


def _kinds(params: TrainingParams, data: CheckedData) -> dict[str, Kind]:
    """Return the kinds of the network's outputs, by label."""
    kind = params._given("outputKind")
    return data.outputs if kind is None else dict.fromkeys(data.outputs, kind)


def _check_losses(found: Mapping[str, Any], loss: str, remedy: str) -> None:
    """Raise if no epoch of a training has a finite loss, because no weights are of use then."""
    losses = [metrics[loss] for metrics in found["history"]]
    if not any(map(math.isfinite, losses)):
        raise TrainingError(
            f"{loss} must be finite in some epoch, got {losses[-1]} after {len(losses)} epochs, so there is no model; "
            f"{remedy}"
        )


def _no_model(result: Result, remedy: str) -> BaseException:
    """Return what to raise if a search ended before its best configuration was trained."""
    name = str(result.directory).rstrip("/").rpartition("/")[2]
    again = f"use runOptions={{'name': {name!r}, 'resume': True}} to resume it"
    if result.ending is Ending.INTERRUPTED:  # as Ctrl-C ends any other cell or script
        return KeyboardInterrupt(f"the search was interrupted before the best configuration was trained; {again}")
    if result.ending is Ending.COMPLETED and result.best_trial is None:
        again = f"no trial has a finite loss: {remedy}"
    return TrainingError(
        f"the search ended ({result.ending}) before the best configuration was trained; {again}\n{result}"
    )


def plan_of(params: TrainingParams) -> TrainingPlan:
    """Build the plan of a training from Params; the location of its rows is set later."""
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
        schedule=params._given("lrScheduler"),
        schedule_params=params._given("lrSchedulerParams"),
        schedule_interval=params._given("lrSchedulerInterval"),
        clip=params._given("gradientClipVal"),
        accumulate=params._given("accumulateGradBatches"),
        precision=params._given("precision"),
        weight=params._given("weightCol"),
        class_weights=None if weights in (None, "balanced") else tuple(weights),  # balanced: once rows are counted
        batch_size=params._given("batchSize"),
        drop_last=params._given("dropLast"),
        epochs=params._given("epochs"),
        patience=params._given("patience"),
        min_delta=params._given("minDelta"),
        keep_best=params._given("keepWeights") == "best",
        freeze=tuple(params._given("freeze")),
        decode=params._given("decode"),
        callbacks=tuple(params._given("callbacks")),
        trainer_params=params._given("trainerParams"),
        seed=params._given("seed"),
    )
    check_model(plan)
    if plan.rate is not None and not is_lightning(plan.model):
        check_rate(optimizer, plan.optimizer_params)
    if weights is not None and (len(plan.labels) > 1 or is_lightning(plan.model)):
        raise ConfigError(
            "classWeights must be used with one label column and a loss that the Estimator computes; use loss=..."
        )
    if unread := sorted(plan.decode.keys() - set(plan.columns)):
        raise ConfigError(
            f"decode must have columns that are read, got {unread[0]!r}; use some of {', '.join(plan.columns)}"
        )
    if params._given("validationFraction") and params._given("validationIndicatorCol"):
        raise ConfigError("validationFraction and validationIndicatorCol must not be given together; use one of them")
    return plan


def space_of(params: TrainingParams, plan: TrainingPlan, of_stages: Mapping[str, Any]) -> SearchSpace | None:
    """Return the search space, if there is one. Each of its names must belong to something that takes its values.

    ``of_stages`` are domains of Params of the stages before. Wrong ``runOptions`` raise ConfigError too.
    """
    given = params._given("search") or {}
    is_search = bool(given or of_stages)
    check_options(params, is_search)
    if params._given("confirm"):
        _check_confirmation(is_search, {*given, *of_stages})
    if not is_search:
        return None
    if "learningRate" in given:
        check_rate(plan.optimizer, plan.optimizer_params)
    for name in given:
        if name in of_stages:
            raise ConfigError(
                f"search must not have {name!r}, which PipelineSearch searches for an earlier stage; rename or remove "
                "it"
            )
    space = SearchSpace({**of_stages, **given})
    check_values(params, {name: space.domains[name] for name in given})
    homes_of(given, space, plan)
    check_metric(params, plan, values_of(space.domains["loss"]) if "loss" in given else [plan.loss])
    return space


def homes_of(names: Collection[str], space: SearchSpace, plan: TrainingPlan) -> dict[str, str]:
    """Return what names of the search belong to, by :func:`home_of`.

    An argument of the optimizer must be one of every optimizer that is drawn with it.
    """
    searched = values_of(space.domains["optimizer"]) if "optimizer" in names else [plan.optimizer]
    for name, optimizer in itertools.product(plan.optimizer_params, searched if "optimizer" in names else ()):
        if not {name, "**"}.intersection(arguments_of(optimizer_class(optimizer))):
            raise ConfigError(
                f"optimizerParams must be arguments of each searched optimizer, got {name!r}, which {optimizer!r} does "
                f"not take; use search={{{name!r}: Constant(value, when={{'optimizer': ...}})}}"
            )
    homes: dict[str, str] = {}
    for name in names:
        without: dict[Any, ConfigError] = {}
        drawn = _optimizers_with(name, space, searched)
        for optimizer in drawn:
            try:
                homes[name] = home_of(name, replace(plan, optimizer=optimizer))
            except ConfigError as error:
                without[optimizer] = error
        if without and name in homes:
            takers = [it for it in drawn if it not in without]
            raise ConfigError(
                f"search: {name} must be an argument of each optimizer that is drawn with it, got "
                f"{', '.join(map(repr, without))}; add when={{'optimizer': {takers!r}}} to {space.domains[name]!r}"
            )
        if without:
            raise next(iter(without.values()))
    return homes


def _optimizers_with(name: str, space: SearchSpace, searched: Sequence[Any]) -> Sequence[Any]:
    """Return the searched optimizers with which a parameter is active."""
    for parent, values in space.domains[name].conditions.items():
        if parent == "optimizer":
            searched = [it for it in searched if it in values]
        else:
            searched = _optimizers_with(parent, space, searched)
    return searched


def _check_confirmation(is_search: bool, names: set[str]) -> None:
    """Check that there is a search whose configurations can be trained again, with other seeds."""
    if not is_search:
        raise ConfigError("confirm must be used with a search, whose best configurations it trains again; use search=")
    if "seed" in names:
        raise ConfigError("search must not have 'seed' with confirm, which trains with other seeds; remove one of them")


def _prepare(params: TrainingParams, df: DataFrame, plan: TrainingPlan) -> PreparedData:
    """Write the columns of the training to Parquet files, with vectors as arrays."""
    indicator = params._given("validationIndicatorCol")
    roles = {"featuresCol": plan.features, "labelCol": plan.labels}
    if plan.weight is not None:
        roles["weightCol"] = (plan.weight,)
    if indicator is not None:
        roles["validationIndicatorCol"] = (indicator,)
    check_names(df, roles)
    if indicator is not None:
        check_indicator(df, indicator)
    for column in columns_of_spark(df.schema, plan.columns):  # which refuses text, dates and the like
        if column.shape is None and column.name not in plan.decode:
            raise ConfigError(
                f"decode must have a function for the bytes of column {column.name!r}, got none; use "
                f"decode={{{column.name!r}: function}}"
            )
    return prepare_data(
        df,
        plan.columns,
        f"{str(params._given('directory')).rstrip('/')}/data",
        validation_column=indicator,
        validation_fraction=params._given("validationFraction"),
        seed=plan.seed,
        keep=params._given("keepData"),
    )
