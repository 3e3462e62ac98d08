"""Checks before a training starts: of the DataFrame, its rows, and the options of the run."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from maggy_like.api.lagom import lagom
from maggy_like.api.run import run
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column, columns_of_arrow, precision_of
from maggy_like.ml.data import (
    VALIDATION,
    ColumnStatistics,
    PreparedData,
    Statistics,
    schema_of,
    statistics_of,
    weights_of,
)
from maggy_like.ml.estimator.lightning import DryRun, check_trainer_params, failed_in
from maggy_like.ml.estimator.network import is_lightning, make_portable, uncompiled
from maggy_like.ml.estimator.objective import (
    Kind,
    Loss,
    Objective,
    decoded,
    fitted,
    inputs_of,
    is_fraction,
    optimizer_class,
    read_loss,
)
from maggy_like.ml.estimator.plan import SEARCHABLE, Data, TrainingPlan, check_batches
from maggy_like.ml.estimator.train import configure_optimizer
from maggy_like.ml.loader.parquet_loader import ParquetLoader
from maggy_like.ml.spark_columns import check_one
from optimizers.checks import did_you_mean

if TYPE_CHECKING:
    from maggy_like.ml.estimator.params import TrainingParams
    from optimizers.space.domains import Domain


def check_frame(df: object, method: str) -> None:
    """Check that it is a DataFrame of Spark, and for ``fit`` one that ends."""
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise DataError(f"{method} must get a Spark DataFrame, got {kind}; use spark.createDataFrame(...)")
    if method == "fit" and df.isStreaming:
        raise DataError(
            "fit must get a DataFrame that is read once, got a stream; read the files or the table by spark.read, and "
            "apply the model to the stream by transform"
        )


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


def _tried(plan: TrainingPlan) -> Objective | DryRun:
    """Make what a few rows are tried with."""
    network = plan.network()
    return DryRun(plan, network) if is_lightning(network) else plan.objective(uncompiled(network))


def fit_to_rows(plan: TrainingPlan, batch: Mapping[str, torch.Tensor]) -> tuple[TrainingPlan, torch.dtype]:
    """Find out what the network requires of the rows by computing some of them: ``batch``, about two.

    Return the plan and the data type of the network's parameters. The plan has the columns of integers that the network
    takes as floats, and the number of rows that each rank needs of a batch: two if the network fails with one, as batch
    normalization does. A network that cannot be made, or could not be used after the training, raises ConfigError.
    """
    objective = _tried(plan)
    frozen = plan.frozen(objective.network)
    make_portable(objective.network, plan.model, plan.model_params, plan.seed)
    precision = precision_of(objective.network)
    if not _takes(objective.eval(), batch, plan) and (names := _as_fractions(objective, batch, plan)):
        plan = replace(plan, as_fractions=names)
        objective = _tried(plan)
        frozen = plan.frozen(objective.network)
    objective.train()
    for module in frozen:
        module.eval()
    one, two = ({name: torch.cat([rows, rows])[:count] for name, rows in batch.items()} for count in (1, 2))
    needs_two = not _takes(objective, one, plan) and _takes(objective, two, plan)
    return replace(plan, least_share=2 if needs_two else 1), precision


def _takes(objective: Objective | DryRun, batch: Mapping[str, torch.Tensor], plan: TrainingPlan) -> bool:
    """Whether the network can compute a batch."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
        if isinstance(objective, DryRun):
            objective(batch)
        else:
            objective.network(*inputs_of(objective.network, batch, plan.features, plan.as_fractions))
        return True
    return False


_FEW = 6  # columns, of which every selection is tried


def _as_fractions(
    objective: Objective | DryRun, batch: Mapping[str, torch.Tensor], plan: TrainingPlan
) -> tuple[str, ...]:
    """Return the columns of integers that have to be fractions; none if that does not help.

    Of more than a few columns, a column is converted if the network then gets further before it fails.
    """

    def reach(names: tuple[str, ...]) -> float:
        return _reach(objective, batch, replace(plan, as_fractions=names))

    whole = [name for name in plan.features if not is_fraction(batch[name]) and name not in plan.decode]
    if len(whole) <= _FEW:
        selections = (it for size in range(len(whole)) for it in itertools.combinations(whole, size + 1))
        return next((names for names in selections if reach(names) == math.inf), ())
    names, best, before = tuple[str, ...](), reach(()), -math.inf
    while before < best < math.inf:
        before = best
        for name in whole:
            if best < math.inf and name not in names and (found := reach((*names, name))) > best:
                names, best = (*names, name), found
    if best < math.inf:
        return tuple(whole) if reach(tuple(whole)) == math.inf else ()
    return names


class _Calls(TorchFunctionMode):
    """Counts the functions of torch that are called."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _reach(objective: Objective | DryRun, batch: Mapping[str, torch.Tensor], plan: TrainingPlan) -> float:
    """Return how many functions of torch the network calls before it fails; infinity if it does not fail."""
    if isinstance(objective, DryRun):  # which converts the columns that it was made for
        objective = _tried(plan).eval()
    with _Calls() as given:
        inputs_of(objective.network, batch, plan.features, plan.as_fractions)
    with _Calls() as calls:
        return math.inf if _takes(objective, batch, plan) else calls.count - given.count


def check_magnitudes(
    found: Statistics, plan: TrainingPlan, batch: Mapping[str, torch.Tensor], precision: torch.dtype
) -> None:
    """Check that no number is infinite in the precision of the network's parameters, in which it computes.

    ``batch`` has some rows, as they are read.
    """
    for name in plan.columns:
        largest = found.columns[name].largest
        if largest is None or not (is_fraction(batch[name]) or name in plan.as_fractions):
            continue
        kinds = [precision, batch[name].dtype] if is_fraction(batch[name]) else [precision]
        kind = min(kinds, key=lambda it: torch.finfo(it).max)
        if largest > torch.finfo(kind).max:
            raise DataError(
                f"column {name!r} must have numbers up to {torch.finfo(kind).max:.3g} ({_short(kind)}), got "
                f"{largest:.3g}; scale the column before fit, or drop such rows"
            )


def remedy(found: Statistics, plan: TrainingPlan, precision: torch.dtype) -> str:
    """Return a remedy for losses that are not finite: numbers may be too large for a product, at any step size."""
    sizes = {name: found.columns[name].largest or 0.0 for name in plan.columns}
    name = max(sizes, key=lambda it: sizes[it])
    if sizes[name] <= math.sqrt(torch.finfo(precision).max):
        return "lower learningRate, or scale the features (pyspark.ml.feature.StandardScaler)"
    return (
        f"column {name!r} has numbers up to {sizes[name]:.3g}, and their squares are infinite as {_short(precision)}; "
        "scale the column before fit"
    )


def check_sample(
    plan: TrainingPlan, batch: Mapping[str, torch.Tensor], found: Statistics, given: Sequence[str]
) -> list[tuple[int, ...]] | None:
    """Compute some rows with the network and the loss, so that a mismatch is reported before workers start.

    Return the shape of each output, without the rows; None for a Lightning module, whose steps are tried. ``batch`` has
    about two rows. ``found`` has the statistics of the labels. ``given`` are the requested options of loss and
    optimizer, which a Lightning module brings itself.
    """
    objective = _tried(plan)
    check_trainer_params(objective.network, plan.trainer_params)
    if isinstance(objective, DryRun):
        if given:
            raise ConfigError(
                f"{', '.join(given)} must not be given with a Lightning module, which has its own loss and optimizer; "
                "use arguments of the module (modelParams, search)"
            )
        _check_steps(objective, batch, plan)
        return None
    plan.frozen(objective.network)
    configure_optimizer(plan, objective)
    objective.eval()  # batch normalization may need more rows than there are
    with torch.no_grad():
        outputs = _outputs(objective.network, batch, plan)
        for name, loss, output in zip(plan.labels, plan.losses, outputs, strict=True):
            if loss.kind == "classes" and output.dim() < 2:
                columns = ", ".join(f"{it!r} of shape {_shape(batch[it])}" for it in plan.features)
                raise ConfigError(
                    f"model must return a number for each class of each row for {loss.name}, got outputs of shape "
                    f"{_shape(output)} for {columns} (the first dimension is that of the rows)"
                )
            shaped, label = fitted(loss, output, batch[name])
            is_class = label.dim() == output.dim() - 1  # and no probabilities of classes
            if loss.kind != "classes" or is_class:
                check_label(name, loss, output, found.columns[name], plan.class_weights)
            shapes = f"outputs of shape {_shape(output)}, and labels {name!r} of shape {_shape(label)} ({label.dtype})"
            if loss.kind in ("binary", "probability", "values") and shaped.shape != label.shape:
                raise ConfigError(f"loss {loss.name} must have outputs and labels of one shape, got {shapes}")
            try:
                loss.function(shaped, label)
            except Exception as error:
                raise ConfigError(
                    f"loss {loss.name} cannot be computed from {shapes}: {type(error).__name__}: {error}"
                ) from error
            if _combines_all_pairs(loss, shaped, label):
                raise ConfigError(
                    f"loss {loss.name} must compare each output with the label of its row, but it combines all pairs "
                    f"of rows, got {shapes}; give both one shape in the function (output.reshape(label.shape))"
                )
        try:
            objective(batch)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"the loss of two rows cannot be computed: {type(error).__name__}: {error}") from error
    return [tuple(output.shape[1:]) for output in outputs]


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Collects the shapes of all tensors that are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.seen.add(tuple(made.shape))
        return made


def _combines_all_pairs(loss: Loss, output: torch.Tensor, label: torch.Tensor) -> bool:
    """Return whether a loss broadcasts outputs and labels of the shapes [rows, 1] and [rows] to all pairs of rows.

    A loss that compares all rows on purpose does so for equal shapes, too. The rows are repeated to a number that no
    other dimension is likely to have.
    """
    one, other = tuple(output.shape), tuple(label.shape)
    if one == other or {one[1:], other[1:]} != {(), (1,)}:
        return False
    repeated = torch.arange(31) % len(output)
    output, label = output[repeated], label[repeated]
    with _Shapes() as as_given:
        loss.function(output, label)
    with _Shapes() as in_one_shape, contextlib.suppress(Exception):  # the function may want the shapes as they are
        loss.function(output.reshape(label.shape), label)
        return (31, 31) in as_given.seen and (31, 31) not in in_one_shape.seen
    return False


def check_whole_numbers(plan: TrainingPlan, batch: Mapping[str, torch.Tensor], found: Statistics) -> None:
    """Refuse integers that the network has no place for, such as a category beyond an embedding.

    ``batch`` has about two rows that the network takes. It also has to take them with the smallest and the largest
    number of each column.
    """
    objective = _tried(plan).eval()
    for name in plan.features:
        column, rows = found.columns[name], batch[name]
        if is_fraction(rows) or name in plan.as_fractions or name in plan.decode or rows.dtype == torch.bool:
            continue
        for value in column.extremes or (column.least, column.greatest):
            if value is None:
                continue
            other = {**batch, name: torch.as_tensor(value).to(rows.dtype).expand_as(rows)}
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    objective(other)
            except Exception as error:
                if not isinstance(error, IndexError) and len(plan.features) > 1:
                    continue  # the other columns' numbers may not go with these
                raise DataError(
                    f"column {name!r} has numbers from {column.least:.0f} to {column.greatest:.0f}, and model "
                    f"fails with them: {type(error).__name__}: {error}; an embedding takes those from 0 to "
                    "num_embeddings - 1, so give it more, or index the column (pyspark.ml.feature.StringIndexer)"
                ) from error


def _check_steps(run: DryRun, batch: Mapping[str, torch.Tensor], plan: TrainingPlan) -> None:
    columns = ", ".join(f"{name!r} of shape {_shape(batch[name])}{_kind(batch[name])}" for name in plan.columns)
    two = {name: torch.cat([rows, rows])[:2] for name, rows in batch.items()}  # which batch normalization needs
    with torch.random.fork_rng(devices=[]):
        try:
            run(two)
        except ConfigError:
            raise
        except Exception as error:
            where = failed_in(error, type(run.network))
            raise ConfigError(f"{where} failed with the batch ({columns}): {type(error).__name__}: {error}") from error


def check_label(
    name: str, loss: Loss, output: torch.Tensor, found: ColumnStatistics, weights: Sequence[float] | None
) -> None:
    """Check that the loss can take the labels, and the class weights if there are any."""
    if found.least is None or found.greatest is None:
        return
    span = f"labels from {found.least:g} to {found.greatest:g}"
    if loss.kind == "classes" and output.dim() > 1:
        classes = output.shape[1]
        if found.fractions:
            raise DataError(
                f"labelCol {name!r} must have classes 0, 1, ... for {loss.name}, got {found.fractions} labels that are "
                "not integers; use pyspark.ml.feature.StringIndexer, or a loss over numbers"
            )
        is_left_out = found.extremes and found.least == getattr(loss.function, "ignore_index", -100)  # of places
        if (found.least < 0 and not is_left_out) or found.greatest >= classes:
            raise DataError(
                f"labelCol {name!r} must have classes 0 to {classes - 1}, one for each output of the network, got "
                f"{span}; use pyspark.ml.feature.StringIndexer"
                + (f", or a network with {int(found.greatest) + 1} outputs" if found.least >= 0 else "")
            )
        if weights is not None and len(weights) != classes:
            raise ConfigError(
                f"classWeights must have {classes} weights, one for each output of the network, got {len(weights)}"
            )
    if loss.kind in ("binary", "probability") and (found.least < 0 or found.greatest > 1):
        raise DataError(
            f"labelCol {name!r} must have labels from 0 to 1 for {loss.name}, got {span}; map them to 0 and 1 "
            "before fit"
        )
    if loss.kind in ("binary", "probability") and weights is not None and len(weights) != 2:
        raise ConfigError(f"classWeights must have two weights for {loss.name}, got {len(weights)}")


def _outputs(network: nn.Module, batch: Mapping[str, torch.Tensor], plan: TrainingPlan) -> tuple[torch.Tensor, ...]:
    given = inputs_of(network, batch, plan.features, plan.as_fractions)
    columns = ", ".join(f"{name!r} of shape {_shape(batch[name])}{_kind(batch[name])}" for name in plan.features)
    try:
        outputs = network(*given)
    except Exception as error:
        raise ConfigError(
            f"model failed with {columns} (the first dimension is that of the rows): {type(error).__name__}: {error}"
        ) from error
    found = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
    if len(found) != len(plan.labels) or not all(isinstance(it, torch.Tensor) for it in found):
        raise ConfigError(
            f"model must return one tensor for each column of labelCol, {len(plan.labels)} "
            f"({', '.join(plan.labels)}), got {len(found)} ({', '.join(type(it).__name__ for it in found)}) for "
            f"columns {columns}"
        )
    return found


def _shape(tensor: torch.Tensor) -> str:
    return str(list(getattr(tensor, "shape", [])))


def _kind(tensor: torch.Tensor) -> str:
    """Return the data type of integers, which a layer may reject; floats are converted to the network's type."""
    return "" if is_fraction(tensor) else f" of {_short(tensor.dtype)}"


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


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
    plan = replace(plan, data=Data(prepared.train, prepared.validation, found.rows, held))
    check_batches(plan.with_config(config))
    loader = ParquetLoader(
        list(prepared.train), plan.columns, batch_size=min(2, found.rows), fractions="float64", shuffle=False
    )
    if loader.rows != found.rows:
        raise DataError(
            f"the Parquet files must have the {found.rows} training rows that Spark counts, got {loader.rows}; write "
            "the DataFrame to a new folder (df.write.parquet) and read that"
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
    total = sum(weights[label] * amount for label, amount in amounts.items())
    if not total:
        raise DataError(
            f"classWeights must have a weight above 0 for some class in {plan.labels[0]!r}, got {list(weights)}"
        )
    plan = replace(plan, class_weights=weights, weight_scale=found.rows / total)
    _ = plan.losses  # whose loss must be one for each row now
    return plan


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


def check_options(params: TrainingParams, plan: TrainingPlan, is_search: bool) -> None:
    """Check that the run accepts ``runOptions``, and that the metric is one that epochs report."""
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
    if metric is None:
        return
    if not isinstance(metric, str):
        raise ConfigError(
            f"runOptions: metric must be the name of one metric, got {metric!r}, because fit returns one model"
        )
    reported = list(_metrics(params, plan))
    if reported and metric not in reported:
        raise ConfigError(
            f"runOptions: metric must be one that epochs report, got {metric!r}{did_you_mean(metric, reported)}; use "
            f"one of {', '.join(reported)}{_why(metric, reported)}"
        )


def _metrics(params: TrainingParams, plan: TrainingPlan) -> Iterable[str]:
    """Return the metrics of an epoch; none if only the module, or the drawn loss, determines them."""
    if plan.loss is None or is_lightning(plan.model) or "loss" in (params._given("search") or {}):
        return
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
