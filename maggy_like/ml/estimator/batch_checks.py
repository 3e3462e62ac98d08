"""Checks with a batch of a few rows, through which the network, its loss and its optimizer go once."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import precision_of
from maggy_like.ml.data import ColumnStatistics, Statistics
from maggy_like.ml.estimator.lightning import DryRun, check_trainer_params, failed_in
from maggy_like.ml.estimator.network import is_lightning, make_portable, uncompiled
from maggy_like.ml.estimator.objective import Loss, Objective, fitted, inputs_of, is_fraction
from maggy_like.ml.estimator.plan import TrainingPlan
from maggy_like.ml.estimator.train import configure_optimizer


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
