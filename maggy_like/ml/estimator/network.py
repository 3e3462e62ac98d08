"""The network that is trained: from an object or a function, with some of its modules frozen."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from maggy_like.errors import ConfigError


def is_lightning(model: Any) -> bool:
    """Whether the network brings its own loss and optimizer, as Lightning's modules do."""
    return callable(getattr(model, "training_step", None)) and callable(getattr(model, "configure_optimizers", None))


def build_network(model: Any, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """The network: a copy of the module, or what the function makes of the arguments.

    Raises:
        ConfigError: The function takes other arguments, or makes no module.
    """
    if isinstance(model, nn.Module):
        if arguments:
            raise ConfigError(
                f"model is a {type(model).__name__} that was made already, and cannot take {', '.join(arguments)}; "
                "pass the class, or a function that makes it"
            )
        try:
            return copy.deepcopy(model)
        except Exception as error:
            raise ConfigError(
                f"model is a {type(model).__name__} that cannot be copied ({first_line(error)}); pass the function or "
                "class that makes it"
            ) from error
    if not callable(model):
        raise ConfigError(f"model must be a torch module, or a function that makes one, got {model!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inspect.signature(model).bind(**arguments)
        except TypeError as error:
            raise ConfigError(
                f"model takes other arguments than {dict(arguments)!r}: {error}; see modelParams"
            ) from None
        network = model(**arguments)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model made {network!r}, which is no torch module")
    return network


def first_line(error: Exception) -> str:
    """The first line of an exception's message; torch's have several."""
    return str(error).partition("\n")[0]


def freeze(network: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """Keep modules as they are: their parameters are not trained.

    Args:
        globs: Patterns for names as ``network.named_modules()`` gives them, such as ``"encoder*"``.

    Returns:
        The frozen modules; in training they are to be in evaluation mode, so that batch normalisation stays too.

    Raises:
        ConfigError: A pattern fits no module.
    """
    modules = {name: module for name, module in network.named_modules() if name}
    frozen: list[nn.Module] = []
    for glob in globs:
        found = [module for name, module in modules.items() if fnmatchcase(name, glob)]
        if not found:
            raise ConfigError(f"freeze: no module has a name like {glob!r}; there are {', '.join(modules) or 'none'}")
        frozen += found
    for module in frozen:
        module.requires_grad_(False)
    return frozen


def normalises_batches(network: nn.Module, frozen: Sequence[nn.Module]) -> bool:
    """Whether a part of the network that is trained normalises over a batch, and so may need more than one row."""
    still = {id(part) for module in frozen for part in module.modules()}
    return any(isinstance(part, _BatchNorm) and id(part) not in still for part in network.modules())


def to_cpu(value: Any) -> Any:
    """A state with all its tensors on the CPU, in memory of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(inner) for inner in value)
    return value
