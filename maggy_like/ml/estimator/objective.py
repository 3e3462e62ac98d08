"""The training objective: losses and optimizers of torch, and the loss of a network on a batch."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import decoded_tensor, precision_of
from maggy_like.ml.inference.predictor import Kind
from optimizers.checks import did_you_mean, short

_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "classes": ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"),
    "binary": ("BCEWithLogitsLoss",),
    "probability": ("BCELoss",),
    "values": ("MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "PoissonNLLLoss"),
}


def _short(name: str) -> str:
    """Normalize a name: ``CrossEntropyLoss``, ``cross_entropy`` and ``crossentropyloss`` are the same."""
    return name.lower().replace("_", "").removesuffix("loss")


_LOSSES = {_short(name): name for group in _BY_KIND.values() for name in group}
_LOSSES |= {"mae": "L1Loss", "bcelogits": "BCEWithLogitsLoss", "binarycrossentropywithlogits": "BCEWithLogitsLoss"}
_LOSSES |= {"binarycrossentropy": "BCELoss"}
_OPTIMIZERS = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


@dataclass(frozen=True)
class Loss:
    """A loss of outputs and labels."""

    function: Callable[..., Any]  # takes an output and a label
    per_row: Callable[..., Any] | None  # the same with one loss for each row; None if the function returns only one
    kind: Kind  # of the outputs that it takes
    name: str  # in messages


def read_loss(loss: Any) -> Loss:
    """Return the loss for a name, class, object or function."""
    if isinstance(loss, str):
        if _short(loss) not in _LOSSES:
            near = did_you_mean(loss, tuple(_LOSSES))
            raise ConfigError(
                f"loss must be the name of a known loss of torch.nn, got {loss!r}{near}; or pass the object or a "
                "function"
            )
        loss = getattr(nn, _LOSSES[_short(loss)])()
    if inspect.isclass(loss) and issubclass(loss, nn.Module):
        loss = loss()
    if not callable(loss):
        raise ConfigError(f"loss must be a name, a loss of torch.nn or a function, got {loss!r}")
    name = type(loss).__name__ if isinstance(loss, nn.Module) else str(getattr(loss, "__name__", loss))
    kind: Kind = next((kind for kind, group in _BY_KIND.items() if _short(name) in map(_short, group)), "other")
    return Loss(loss, _per_row(loss), kind, name)


def make_optimizer(
    optimizer: Any, parameters: Iterable[nn.Parameter], rate: float | None, options: dict[str, Any]
) -> torch.optim.Optimizer:
    """Create an optimizer for the trained parameters.

    Args:
        optimizer: A name, a class of torch.optim, an instance (its class and options are used), or a function of the
            parameters and ``options``.
        parameters: All parameters; frozen ones are left out.
        rate: Learning rate, the argument ``lr``; None if an instance or a function has its own.
        options: Further arguments.

    Raises:
        ConfigError: The name is unknown, or the rate or the options are not accepted.
    """
    kind, given = optimizer_class(optimizer), dict(options)
    if isinstance(optimizer, torch.optim.Optimizer):
        known = inspect.signature(kind).parameters
        given = {name: value for name, value in optimizer.defaults.items() if name in known} | given
    if rate is not None:
        check_rate(optimizer, options)
        given["lr"] = rate
    there = list(parameters)
    trained = [parameter for parameter in there if parameter.requires_grad]
    if not trained:
        raise ConfigError(f"model must have parameters to train, got none{'; freeze fewer modules' if there else ''}")
    try:
        made = kind(trained, **given)
    except TypeError as error:
        raise ConfigError(
            f"optimizerParams must be arguments of optimizer={optimizer!r}, got {options!r}: {error}"
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"optimizer={optimizer!r} must return an optimizer of torch, got {made!r}")
    return made


def make_scheduler(
    scheduler: Any, optimizer: torch.optim.Optimizer, options: Mapping[str, Any], total_steps: int
) -> Any:
    """Create a learning rate schedule.

    ``scheduler`` is a name, a class of torch.optim.lr_scheduler, or a function of the optimizer and ``options``.
    ``total_steps``, how often it advances, is passed to one that takes it.
    """
    kind = scheduler
    if isinstance(scheduler, str) and (kind := _SCHEDULERS.get(_short_schedule(scheduler))) is None:
        near = did_you_mean(scheduler, [it.__name__ for it in _SCHEDULERS.values()])
        raise ConfigError(
            f"lrScheduler must be the name of a class of torch.optim.lr_scheduler, got {scheduler!r}{near}"
        )
    if not callable(kind):
        raise ConfigError(
            f"lrScheduler must be a name, a class of torch.optim.lr_scheduler or a function, got {scheduler!r}"
        )
    given = dict(options)
    if "total_steps" in inspect.signature(kind).parameters and not {"total_steps", "epochs"} & given.keys():
        given["total_steps"] = total_steps
    try:
        made = kind(optimizer, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"lrSchedulerParams must be arguments of lrScheduler={scheduler!r}, got {dict(options)!r}: {error}"
        ) from error
    if not callable(getattr(made, "step", None)):
        raise ConfigError(f"lrScheduler={scheduler!r} must return a scheduler of torch, got {made!r}")
    return made


def _short_schedule(name: str) -> str:
    """Normalize a name: ``OneCycleLR``, ``one_cycle`` and ``onecyclelr`` are the same."""
    return name.lower().replace("_", "").removesuffix("lr")


_SCHEDULERS = {
    _short_schedule(name): kind
    for name, kind in vars(torch.optim.lr_scheduler).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler) and name != "LRScheduler"
}


def optimizer_class(optimizer: Any) -> Callable[..., Any]:
    """Return what makes the optimizer: a class of torch.optim, or a function of the user."""
    if isinstance(optimizer, torch.optim.Optimizer):
        if len(optimizer.param_groups) > 1:
            raise ConfigError(
                f"optimizer must have one group of parameters, got {len(optimizer.param_groups)}; pass a function that "
                "takes the parameters and returns the optimizer"
            )
        return type(optimizer)
    if isinstance(optimizer, str):
        if (kind := _OPTIMIZERS.get(optimizer.lower().replace("_", ""))) is None:
            near = did_you_mean(optimizer, tuple(_OPTIMIZERS))
            raise ConfigError(f"optimizer must be the name of an optimizer of torch.optim, got {optimizer!r}{near}")
        return kind
    if not callable(optimizer):
        raise ConfigError(f"optimizer must be a name, a class of torch.optim or a function, got {optimizer!r}")
    return optimizer  # type: ignore[no-any-return]


def arguments_of(function: Any) -> list[str]:
    """Return the names that a function takes, without an optimizer's ``params``; ``**`` if it takes any."""
    kinds = inspect.Parameter
    given = inspect.signature(function).parameters.values()
    taken = [p.name for p in given if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    return [name for name in taken if name != "params"] + ["**" for p in given if p.kind is kinds.VAR_KEYWORD]


def check_rate(optimizer: Any, options: Mapping[str, Any]) -> None:
    """Check that ``learningRate`` reaches the optimizer, and is its only learning rate."""
    if "lr" in options:
        raise ConfigError(f"optimizerParams must not have 'lr', got {options['lr']!r}; use learningRate")
    if not {"lr", "**"}.intersection(arguments_of(optimizer_class(optimizer))):
        raise ConfigError(
            f"optimizer must take lr, the value of learningRate, got {short(optimizer)}; add the argument lr to the "
            "function, or omit learningRate"
        )


def _per_row(loss: Any) -> Callable[..., Any] | None:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        twin = copy.deepcopy(loss)
        setattr(twin, "reduction", "none")  # noqa: B010  # which nn.Module says is a tensor or a module
        return twin
    with contextlib.suppress(ValueError):  # a builtin without a signature
        if "reduction" in inspect.signature(loss).parameters:
            return partial(loss, reduction="none")
    return None


Batch = Mapping[str, Tensor]
Metrics = dict[str, Tensor]


class Objective(nn.Module):
    """The mean loss of a network on a batch, and its metrics.

    The network takes the inputs in order, and returns one output, or a tuple with one output for each label.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Sequence[Loss],  # one for each label
        features: Sequence[str],  # columns of the inputs
        labels: Sequence[str],  # columns of the labels
        *,
        as_fractions: Sequence[str] = (),  # integer columns that the network takes as floats
        weight: str | None = None,  # column with the weight of each row
        class_weights: Sequence[float] | None = None,  # weight of each class
        weight_scale: float = 1.0,  # makes the mean of all rows' weights 1, so that weights do not change the step size
    ) -> None:
        super().__init__()
        self.network = network
        self._losses = list(losses)
        self._features, self._labels, self._weight = list(features), list(labels), weight
        self._as_fractions = tuple(as_fractions)
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)
        self._scale = weight_scale

    def forward(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the mean loss over the rows, and metrics that are also means over them."""
        outputs = self.network(*inputs_of(self.network, batch, self._features, self._as_fractions))
        if not isinstance(outputs, list | tuple):
            outputs = (outputs,)
        if len(outputs) != len(self._labels):
            raise ConfigError(
                f"model must return one output for each column of labelCol, {len(self._labels)} "
                f"({', '.join(self._labels)}), got {len(outputs)}"
            )
        total, metrics = torch.zeros((), device=outputs[0].device), Metrics()
        for loss, output, name in zip(self._losses, outputs, self._labels, strict=True):
            output, label = fitted(loss, _in_full(output), batch[name])
            total = total + self._mean(loss, output, label, batch)
            if (right := _right(loss, output, label)) is not None:
                metrics["accuracy" if len(self._labels) == 1 else f"accuracy_{name}"] = right
        return total, {"loss": total.detach(), **metrics}

    def _mean(self, loss: Loss, output: Tensor, label: Tensor, batch: Batch) -> Tensor:
        if (weights := self.weights(batch)) is None:
            value: Tensor = loss.function(output, label)
            return value if value.dim() == 0 else value.mean()
        assert loss.per_row is not None  # checked before
        rows = loss.per_row(output, label)
        rows = rows.flatten(1).mean(1) if rows.dim() > 1 else rows
        weighed: Tensor = (weights.to(rows) * rows).mean()
        return weighed

    def weights(self, batch: Batch) -> Tensor | None:
        """Return the weight of each row, whose mean over all training rows is 1; None if rows have no weights."""
        if self._weight is None and self._class_weights is None:
            return None
        label = batch[self._labels[0]]
        weights = torch.full((len(label),), self._scale, dtype=torch.float64, device=label.device)
        if self._weight is not None:
            weights = weights * batch[self._weight]
        if self._class_weights is not None:
            weights = weights * self._class_weights.to(weights)[label.long().flatten()]
        return weights


def _in_full(output: Tensor) -> Tensor:
    """Return the output of an autocast network in single precision, in which the loss is computed."""
    return output.float() if torch.is_autocast_enabled(output.device.type) else output


def decoded(
    batch: Mapping[str, Any], decode: Mapping[str, Callable[[bytes], Any]], device: torch.device
) -> dict[str, Tensor]:
    """Convert columns of bytes to tensors on a device.

    ``decode`` has functions from the bytes of a row to a tensor or array, by column. All rows of a column must have one
    shape.
    """
    made: dict[str, Tensor] = dict(batch)
    for name in decode.keys() & batch.keys():
        try:
            rows = [decoded_tensor(decode[name](value)) for value in batch[name]]
        except Exception as error:  # of the user's function, about a row's bytes
            raise DataError(
                f"column {name!r} has a row that decode fails with: {type(error).__name__}: {error}; drop such rows "
                "before fit, or let the function return a tensor for them"
            ) from error
        if len(shapes := {tuple(row.shape) for row in rows}) > 1:
            raise DataError(f"decode[{name!r}] must give tensors of one shape, got {sorted(shapes)} in one batch")
        stacked = torch.stack(rows)
        made[name] = stacked.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else stacked.to(device)
    return made


def inputs_of(
    network: nn.Module, batch: Batch, columns: Sequence[str], as_fractions: Sequence[str] = ()
) -> list[Tensor]:
    """Return columns of a batch, with floats in the precision of the network: Spark's are mostly double."""
    dtype = precision_of(network)
    return [
        batch[name].to(dtype) if name in as_fractions or is_fraction(batch[name]) else batch[name] for name in columns
    ]


def is_fraction(value: object) -> bool:
    """Whether a column of a batch is a tensor of floats."""
    return isinstance(value, Tensor) and value.is_floating_point()


def fitted(loss: Loss, output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Bring output and label into the shapes and types that the loss takes.

    An output with one number per row loses its last dimension if the label has none: a loss of shapes [rows, 1] and
    [rows] would be one of all pairs.
    """
    if loss.kind == "classes" and label.dim() == output.dim() - 1:
        return output, label.long()
    if loss.kind in ("binary", "probability", "values"):
        if output.dim() == label.dim() + 1 and output.shape[-1] == 1:
            output = output.squeeze(-1)
        elif label.dim() == output.dim() + 1 and label.shape[-1] == 1:
            label = label.squeeze(-1)
    return output, label.to(output.dtype) if label.is_floating_point() or loss.kind != "other" else label


def _right(loss: Loss, output: Tensor, label: Tensor) -> Tensor | None:
    """Return the fraction of correctly predicted rows, for losses over classes."""
    with torch.no_grad():
        if loss.kind == "classes" and label.dim() == output.dim() - 1:
            return (output.argmax(1) == label).float().mean()
        if loss.kind in ("binary", "probability") and output.shape == label.shape:
            return ((output > (0.0 if loss.kind == "binary" else 0.5)) == (label > 0.5)).float().mean()
    return None
