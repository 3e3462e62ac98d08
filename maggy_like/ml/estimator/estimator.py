"""``TorchEstimator`` and ``PipelineSearch``: train a PyTorch network on a DataFrame, with or without a search."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.ml import Estimator, PipelineModel, Transformer
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from maggy_like.driver.settings import Confirmation
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.data import VALIDATION
from maggy_like.ml.estimator.fit import fit_network, plan_of, prepare_rows, space_of, train_checked
from maggy_like.ml.estimator.model import TorchModel
from maggy_like.ml.estimator.param_checks import check_indicator, check_names
from maggy_like.ml.estimator.params import ObjectsReader, ObjectsWriter, TrainingParams
from maggy_like.ml.spark_columns import check_frame, quoted
from optimizers.checks import explains_init, short


@explains_init
class TorchEstimator(Estimator[TorchModel], TrainingParams, MLReadable["TorchEstimator"], MLWritable):
    """Train a PyTorch network on the rows of a DataFrame, with all workers together.

    It is an Estimator of pyspark.ml. Use it in a ``Pipeline``, with ``CrossValidator`` and ``TrainValidationSplit``,
    and save and load it like other stages. ``fit`` writes the DataFrame to Parquet once, unless its rows are in
    Parquet files already. Each epoch reads every row once. The batch size is that of all workers together, so their
    number changes only the speed.

    With ``search``, ``fit`` first searches for the best configuration, and then trains it on the same workers. The
    names of the search space are Params (``learningRate``, ``batchSize``, ``optimizer``, ``loss``, ``patience``,
    ``seed``), arguments of the function that makes the network, and arguments of the optimizer.

    Labels are class numbers from 0 for ``"cross_entropy"`` and similar losses, 0 or 1 for ``"bce_with_logits"``, and
    numbers for ``"mse"``. With several labels, the network returns one output for each, and the Model adds one column
    ``prediction_LABEL`` for each.

    Args:
        model: Network: a module, or a function or class that makes one from ``modelParams``. It may be compiled by
            ``torch.compile``: it trains compiled, and the Model has the plain network. A LightningModule brings its own
            loss, optimizer and schedule, and is trained by Lightning's Trainer.
        modelParams: Arguments of that function.
        loss: Loss: a name, a loss of torch.nn, ``f(output, label)``, or a list with one for each label. Several losses
            are added.
        outputKind: Meaning of the network's output: ``"classes"`` (logits), ``"binary"`` (a logit), ``"probability"``,
            ``"values"`` or ``"other"``. Default: the kind that the loss takes.
        optimizer: Optimizer: a name, a class of torch.optim, an instance, or ``f(parameters, **optimizerParams)``.
            Default: ``"adam"``.
        optimizerParams: Further arguments of the optimizer.
        learningRate: Step size of the optimizer, its argument ``lr``. Default: 0.001, or the step size that an instance
            or a function sets.
        lrScheduler: Learning rate schedule: a name such as ``"OneCycleLR"``, a class of torch.optim.lr_scheduler, or
            ``f(optimizer, **lrSchedulerParams)``. If it takes ``total_steps``, it gets how often the schedule advances.
            ``"ReduceLROnPlateau"`` follows the loss of the validation, if there is one. Default: a constant rate.
        lrSchedulerParams: Further arguments of the schedule.
        lrSchedulerInterval: When the schedule advances: after each ``"epoch"`` (the default) or each ``"step"`` of the
            optimizer.
        gradientClipVal: Largest norm of the gradients of a step; larger ones are scaled down. Default: no limit.
        accumulateGradBatches: Number of batches whose gradients are averaged for one step of the optimizer. The last
            step of an epoch may have fewer. Default: 1.
        precision: ``"bf16"``, or on GPUs ``"fp16"``, to compute network and loss with autocast. Weights stay as they
            are, and ``"fp16"`` scales the loss. Default: ``"32"``, without autocast.
        featuresCol: Input column, or a list with one column for each input of the network.
        labelCol: Label column, or a list with one column for each output of the network.
        predictionCol: Name of the new column of predictions.
        probabilityCol: Name of the new column of class probabilities, for losses over classes.
        rawPredictionCol: Name of a new column of vectors for losses over classes: the logits, or ``[-logit, logit]`` of
            a binary loss. Evaluators of pyspark.ml expect ``"rawPrediction"``. Default: no such column.
        errorCol: Name of a new column with the reason why a row has no prediction. Default: no such column.
        resultCol: Name of a new column of structs with label, score, vector and error. Default: no such column.
        decode: Functions from the bytes of a row to a tensor, by column: ``{"image": decode_png}``.
        weightCol: Column with the weight of each row.
        classWeights: Weight of each class, or ``"balanced"`` to weight classes as if they had equal numbers of rows.
            Each row must have one class.
        validationIndicatorCol: Boolean column that is true for validation rows.
        validationFraction: Fraction of the rows used for validation, from 0 to less than 1, drawn with ``seed``.
        batchSize: Number of rows of a batch, over all workers.
        dropLast: If True, the last training batch of an epoch is left out if it has fewer rows. Default: False.
        epochs: Maximum number of passes over the rows.
        patience: Number of epochs without a lower loss after which the training ends. The loss is that of the
            validation, if there is one. Default: no early end.
        minDelta: Minimum decrease of the loss that counts as lower.
        keepWeights: ``"best"`` to keep the weights with the lowest loss, ``"last"`` to keep the last ones.
        freeze: Patterns of names of modules that are not trained: ``["encoder*"]``.
        callbacks: Functions ``f(epoch, metrics, network)``, called on rank 0 after each epoch.
        trainerParams: Further arguments of ``lightning.Trainer`` for a LightningModule, such as ``logger`` and
            ``callbacks``. Default: none.
        seed: Seed of all random numbers.
        workers: Number of workers. Default: all slots of the engine.
        engine: Engine: ``"auto"``, ``"spark"``, ``"local"``, ``"inline"``, or an engine object.
        directory: Path or URL of a directory for data, checkpoints and logs. Spark and all workers must have access to
            it.
        keepData: If True, the Parquet copy of the data is kept for later processes. Default: it is removed when this
            process exits.
        search: Search space, by name. Default: no search.
        confirm: If True, or a :class:`~maggy_like.Confirmation`, the best configurations of the search are trained
            again with other seeds, and the best one of these is used. Default: False.
        runOptions: Further arguments of :func:`maggy_like.lagom` (``n_trials``, ``optimizer``, ``timeout``, ...) with
            a search, or of :func:`maggy_like.run` without one (``progress``, ``failures``, ...).

    Raises:
        ConfigError: An argument is invalid.

    Example:
        >>> estimator = TorchEstimator(
        ...     model=lambda hidden: nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3)),
        ...     loss="cross_entropy",
        ...     epochs=5,
        ...     search={"hidden": Integer(8, 64), "learningRate": Float(1e-4, 1e-1, log=True)},
        ...     runOptions={"n_trials": 4, "progress": False},
        ... )
        >>> model = estimator.fit(df)
        >>> model.config
        {'hidden': ..., 'learningRate': ...}
        >>> model.transform(df).select("prediction").first()
        Row(prediction=...)
    """

    def __init__(
        self,
        *,
        model: Any = None,
        modelParams: Mapping[str, Any] | None = None,
        loss: Any = None,
        outputKind: str | None = None,
        optimizer: Any = None,
        optimizerParams: Mapping[str, Any] | None = None,
        learningRate: float | None = None,
        lrScheduler: Any = None,
        lrSchedulerParams: Mapping[str, Any] | None = None,
        lrSchedulerInterval: str | None = None,
        gradientClipVal: float | None = None,
        accumulateGradBatches: int | None = None,
        precision: str | None = None,
        featuresCol: str | Sequence[str] | None = None,
        labelCol: str | Sequence[str] | None = None,
        predictionCol: str | None = None,
        probabilityCol: str | None = None,
        rawPredictionCol: str | None = None,
        errorCol: str | None = None,
        resultCol: str | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        weightCol: str | None = None,
        classWeights: str | Sequence[float] | None = None,
        validationIndicatorCol: str | None = None,
        validationFraction: float | None = None,
        batchSize: int | None = None,
        dropLast: bool | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        minDelta: float | None = None,
        keepWeights: str | None = None,
        freeze: Sequence[str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
        trainerParams: Mapping[str, Any] | None = None,
        seed: int | None = None,
        workers: int | None = None,
        engine: Any = None,
        directory: str | None = None,
        keepData: bool | None = None,
        search: Mapping[str, Any] | None = None,
        confirm: bool | Confirmation | None = None,
        runOptions: Mapping[str, Any] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self._set_defaults()
        self._take(given)

    def setParams(self, **given: Any) -> TorchEstimator:
        """Set Params by name, as in the constructor.

        Raises:
            ConfigError: A Param does not exist, or a value is invalid for it.
        """
        self._take(given)
        return self

    def _fit(self, dataset: DataFrame) -> TorchModel:
        check_frame(dataset, "fit")
        return TorchModel._of(fit_network(self, dataset), self)

    def write(self) -> ObjectsWriter:
        """Return a writer, as other stages of pyspark.ml do."""
        return ObjectsWriter(self)

    @classmethod
    def read(cls) -> ObjectsReader[TorchEstimator]:
        """Return a reader, as other stages of pyspark.ml do."""
        return ObjectsReader(cls)


Stage = Estimator[Any] | Transformer
Values = tuple[Any, ...]


@explains_init
class PipelineSearch(Estimator[PipelineModel]):
    """Search over Params of a pipeline's stages and over the training of its network, in one search.

    Before the search, every combination of the stages' values is fitted and written to Parquet once, so keep the
    number of values small. A stage is fitted once for all combinations that agree up to it. If rows are set apart for
    validation, stages are fitted on the other rows, as in ``TrainValidationSplit``. The search space of the network
    (``search`` of :class:`TorchEstimator`) has no such limit. If the function that makes the network has an argument
    with the name of a searched Param, such as ``numFeatures``, it receives the value of that Param.

    ``fit`` returns the best ``PipelineModel``, which you can save and load. A ``PipelineSearch`` itself cannot be
    saved.

    Args:
        stages: Stages of pyspark.ml; the last must be a :class:`TorchEstimator`.
        search: Lists of values, by Params of the stages before it. In configurations, lists are tuples and infinite
            numbers are text.

    Raises:
        ConfigError: The last stage is not a TorchEstimator, or a Param belongs to none of the other stages.

    Example:
        >>> from pyspark.ml.feature import FeatureHasher
        >>> hashed = FeatureHasher(inputCols=["store", "day"], outputCol="hashed")
        >>> estimator = TorchEstimator(
        ...     model=lambda numFeatures: nn.Linear(numFeatures, 3),
        ...     loss="cross_entropy",
        ...     featuresCol="hashed",
        ...     runOptions={"progress": False},
        ... )
        >>> model = PipelineSearch([hashed, estimator], {hashed.numFeatures: [64, 256]}).fit(df)
        >>> model.stages[0].getNumFeatures() in (64, 256)
        True
    """

    def __init__(self, stages: Sequence[Stage], search: Mapping[Param[Any], Sequence[Any]]) -> None:
        super().__init__()
        if not stages or not isinstance(stages[-1], TorchEstimator):
            last = type(stages[-1]).__name__ if stages else "no stage"
            raise ConfigError(
                f"stages must end in a TorchEstimator, got {last}; use CrossValidator or TrainValidationSplit of "
                "pyspark.ml.tuning for Spark's own estimators"
            )
        if not isinstance(search, Mapping) or not all(isinstance(param, Param) for param in search):
            raise ConfigError(
                f"search must be a dict with lists of values by Params, got {short(search)}; use "
                "{hashed.numFeatures: [64, 256]}"
            )
        self._before, self._network = list(stages[:-1]), stages[-1]
        # The values by what stands for them in the search space.
        self._search = {param: {_in_space(value): value for value in values} for param, values in search.items()}
        names = [param.name for param in self._search]
        for param, values in self._search.items():
            if not any(stage.uid == param.parent for stage in self._before):
                own = f"; use search={{{param.name!r}: [...]}} of the TorchEstimator"
                raise ConfigError(
                    f"search must have Params of stages before the TorchEstimator, got {param.parent}.{param.name}"
                    f"{own if param.parent == self._network.uid else ''}"
                )
            if not values:
                raise ConfigError(f"search must have at least one value for {param.name}, got none")
            if names.count(param.name) > 1:
                raise ConfigError(
                    f"search must have different names of Params, got {param.name!r} of two stages; search over one of "
                    "them"
                )

    def _fit(self, dataset: DataFrame) -> PipelineModel:
        check_frame(dataset, "fit")
        network = self._network
        plan_of(network)
        with self._parts(dataset) as parts:
            if len(parts) > 1:  # which are written together, told apart by a column
                network = network.copy({network.validationFraction: 0.0, network.validationIndicatorCol: VALIDATION})
            plan = replace(plan_of(network), stage_params=tuple(param.name for param in self._search))
            space = space_of(network, plan, {param.name: list(values) for param, values in self._search.items()})
            fitted = dict(self._variants(parts))
            checked = {
                values: prepare_rows(network, plan, space, rows, dict(zip(plan.stage_params, values, strict=True)))
                for values, (_, rows) in fitted.items()
            }
        found = train_checked(network, plan, checked, space)
        model = TorchModel._of(found, self._network)
        stages, _ = fitted[tuple(found.config[name] for name in plan.stage_params)]
        return PipelineModel([*stages, model])

    @contextlib.contextmanager
    def _parts(self, dataset: DataFrame) -> Iterator[Sequence[DataFrame]]:
        """Yield the rows to fit stages on and those to validate on; all rows if nothing is set apart or fitted.

        Neither part may be empty.
        """
        share, indicator = self._network._given("validationFraction"), self._network._given("validationIndicatorCol")
        split = None
        if not any(isinstance(stage, Estimator) for stage in self._before) or not (share or indicator):
            yield (dataset,)
            return
        if indicator is None:
            if VALIDATION in dataset.columns:
                raise DataError(
                    f"the DataFrame must not have a column with the reserved name {VALIDATION!r}; rename it"
                )
            # What is drawn is kept: another time, the rows may come in another order.
            split = dataset.withColumn(VALIDATION, F.rand(self._network._given("seed")) < share).persist()
            parts = [split.where(wanted).drop(VALIDATION) for wanted in (~F.col(VALIDATION), F.col(VALIDATION))]
        else:
            check_names(dataset, {"validationIndicatorCol": [indicator]})
            check_indicator(dataset, indicator)
            is_held = F.coalesce(F.col(quoted(indicator)), F.lit(False))
            parts = [dataset.where(wanted) for wanted in (~is_held, is_held)]
        try:
            for part, use in zip(parts, ("train", "validate"), strict=True):
                if part.isEmpty():
                    raise DataError(
                        f"the rows to {use} on must be at least 1, got 0; change the fraction of validation rows"
                    )
            yield parts
        finally:
            if split is not None:
                split.unpersist()

    def _variants(self, parts: Sequence[DataFrame]) -> Iterator[tuple[Values, tuple[list[Transformer], DataFrame]]]:
        """Yield the fitted stages and their rows for each combination of values."""
        known: dict[tuple[Any, ...], tuple[Transformer, list[DataFrame]]] = {}
        for values in itertools.product(*self._search.values()):
            given = dict(zip(self._search, values, strict=True))
            stages, rows, path = list[Transformer](), list(parts), Values()
            for stage in self._before:
                mine = {param: self._search[param][it] for param, it in given.items() if param.parent == stage.uid}
                path = (*path, (stage.uid, *map(repr, mine.values())))
                if path not in known:
                    copied = stage.copy(mine)
                    model = copied.fit(rows[0]) if isinstance(copied, Estimator) else copied
                    known[path] = model, [model.transform(part) for part in rows]
                model, rows = known[path]
                stages.append(model)
            yield values, (stages, _together(rows))


def _in_space(value: Any) -> Any:
    """Return what stands for a stage's value in a search space: tuples for lists, and text for infinite numbers."""
    if isinstance(value, list | tuple):
        return tuple(map(_in_space, value))
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _together(parts: Sequence[DataFrame]) -> DataFrame:
    """Unite the rows of all parts; several parts get a column that marks validation rows."""
    if len(parts) == 1:
        return parts[0]
    train, held = (part.withColumn(VALIDATION, F.lit(number == 1)) for number, part in enumerate(parts))
    return train.unionByName(held)
