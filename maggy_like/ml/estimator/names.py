"""Losses and optimizers of torch, by object or by name; and what a loss says of the labels and the outputs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from maggy_like.errors import ConfigError
from optimizers.checks.near_names import did_you_mean

Kind = Literal["classes", "binary", "probability", "values", "other"]
"""What a loss takes: logits of classes, a logit of "yes", the probability of "yes", numbers, or anything."""

_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "classes": ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"),
    "binary": ("BCEWithLogitsLoss",),
    "probability": ("BCELoss",),
    "values": ("MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "PoissonNLLLoss"),
}


def _short(name: str) -> str:
    """``CrossEntropyLoss``, ``cross_entropy`` and ``crossentropyloss`` mean the same."""
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
    """A loss of outputs and labels.

    Attributes:
        function: Takes an output and a label.
        per_row: The same with a loss for each row; None where the function gives just one.
        kind: What its labels are.
        name: How to call it in messages.
    """

    function: Callable[..., Any]
    per_row: Callable[..., Any] | None
    kind: Kind
    name: str


def read_loss(loss: Any) -> Loss:
    """The loss of that name, class, object or function.

    Raises:
        ConfigError: There is none of that name.
    """
    if isinstance(loss, str):
        if _short(loss) not in _LOSSES:
            near = did_you_mean(loss, tuple(_LOSSES))
            raise ConfigError(
                f"loss={loss!r} is none of torch.nn that is known here{near}; pass the object or a function"
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
    """An optimizer for what is trained of parameters.

    Args:
        optimizer: A name, a class of torch.optim, one that was made (its class and options are taken), or a function
            of the parameters and ``options``.
        parameters: Those that are frozen are left out.
        rate: The learning rate; None where an optimizer that was made has its own. Functions do not get it.
        options: Further arguments.

    Raises:
        ConfigError: There is none of that name, or it does not take the options.
    """
    kind, given = optimizer_class(optimizer), dict(options)
    if isinstance(optimizer, torch.optim.Optimizer):
        known = inspect.signature(kind).parameters
        given = {name: value for name, value in optimizer.defaults.items() if name in known} | given
    if inspect.isclass(kind) and rate is not None:
        given["lr"] = rate
    there = list(parameters)
    trained = [parameter for parameter in there if parameter.requires_grad]
    if not trained:
        raise ConfigError(f"the network has no parameters to train{'; freeze less of it' if there else ''}")
    try:
        made = kind(trained, **given)
    except TypeError as error:
        raise ConfigError(f"optimizer={optimizer!r} does not take optimizerParams={options!r}: {error}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"optimizer={optimizer!r} made {made!r}, which is no optimizer of torch")
    return made


def optimizer_class(optimizer: Any) -> Callable[..., Any]:
    """What makes the optimizer: a class of torch.optim, or a function of the user.

    Raises:
        ConfigError: There is none of that name.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        if len(optimizer.param_groups) > 1:
            raise ConfigError(
                f"optimizer has {len(optimizer.param_groups)} groups of parameters, which are those of another "
                "network; pass a function that takes the parameters and makes it"
            )
        return type(optimizer)
    if isinstance(optimizer, str):
        if (kind := _OPTIMIZERS.get(optimizer.lower().replace("_", ""))) is None:
            near = did_you_mean(optimizer, tuple(_OPTIMIZERS))
            raise ConfigError(f"optimizer={optimizer!r} is none of torch.optim{near}")
        return kind
    if not callable(optimizer):
        raise ConfigError(f"optimizer must be a name, a class of torch.optim or a function, got {optimizer!r}")
    return optimizer  # type: ignore[no-any-return]


def _per_row(loss: Any) -> Callable[..., Any] | None:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        twin = copy.deepcopy(loss)
        setattr(twin, "reduction", "none")  # noqa: B010  # which nn.Module says is a tensor or a module
        return twin
    if inspect.isfunction(loss) and "reduction" in inspect.signature(loss).parameters:

        def unreduced(output: Any, label: Any) -> Any:
            return loss(output, label, reduction="none")

        return unreduced
    return None
