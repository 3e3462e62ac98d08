"""``PipelineSearch``: search over preprocessing and network together."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.ml import Estimator, PipelineModel, Transformer
from pyspark.ml.param import Param
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.data import VALIDATION
from maggy_like.ml.estimator.checks import check_frame, check_indicator, check_names
from maggy_like.ml.estimator.estimator import TorchEstimator
from maggy_like.ml.estimator.fit import plan_of, prepare_rows, space_of, train_checked
from maggy_like.ml.estimator.model import TorchModel
from maggy_like.ml.spark_columns import quoted

Stage = Estimator[Any] | Transformer
Values = tuple[Any, ...]


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
        search: Lists of values, by Params of the stages before it.

    Raises:
        ConfigError: The last stage is not a TorchEstimator, or a Param belongs to none of the other stages.

    Example:
        >>> hashed = FeatureHasher(inputCols=["store", "day"], outputCol="features")  # doctest: +SKIP
        >>> search = PipelineSearch([hashed, estimator], {hashed.numFeatures: [64, 256]})  # doctest: +SKIP
        >>> search.fit(df).transform(df)  # doctest: +SKIP
    """

    def __init__(self, stages: Sequence[Stage], search: Mapping[Param[Any], Sequence[Any]]) -> None:
        super().__init__()
        if not stages or not isinstance(stages[-1], TorchEstimator):
            raise ConfigError("stages must end in a TorchEstimator")
        self._before, self._network = list(stages[:-1]), stages[-1]
        # As tuples, which tell combinations apart, where a Param takes lists.
        self._search = {
            param: [tuple(value) if isinstance(value, list) else value for value in values]
            for param, values in search.items()
        }
        names = [param.name for param in self._search]
        for param, values in self._search.items():
            if not any(stage.uid == param.parent for stage in self._before):
                raise ConfigError(
                    f"search must have Params of stages before the TorchEstimator, got {param.parent}.{param.name}"
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
            space = space_of(network, plan, {param.name: values for param, values in self._search.items()})
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

        Raises:
            UserError: The indicator column has a reserved name or another type, or a part has no rows.
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
                mine = {
                    param: list(value) if isinstance(value, tuple) else value
                    for param, value in given.items()
                    if param.parent == stage.uid
                }
                path = (*path, (stage.uid, *map(repr, mine.values())))
                if path not in known:
                    copied = stage.copy(mine)
                    model = copied.fit(rows[0]) if isinstance(copied, Estimator) else copied
                    known[path] = model, [model.transform(part) for part in rows]
                model, rows = known[path]
                stages.append(model)
            yield values, (stages, _together(rows))


def _together(parts: Sequence[DataFrame]) -> DataFrame:
    """Unite the rows of all parts; several parts get a column that marks validation rows."""
    if len(parts) == 1:
        return parts[0]
    train, held = (part.withColumn(VALIDATION, F.lit(number == 1)) for number, part in enumerate(parts))
    return train.unionByName(held)
