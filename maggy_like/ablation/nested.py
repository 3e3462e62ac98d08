"""What models take and give: tuples, lists and dicts of tensors and of each other."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A function of all that tuples, lists and dicts hold, in their structure."""
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, part in value.items():
            made[key] = mapped(function, part)
        return made
    if isinstance(value, tuple | list):
        each = [mapped(function, part) for part in value]
        return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
    return function(value)


def parts(value: Any) -> list[Any]:
    """All that tuples, lists and dicts hold."""
    if isinstance(value, dict):
        return parts(tuple(value.values()))
    return [one for part in value for one in parts(part)] if isinstance(value, tuple | list) else [value]


def first_name(module: nn.Module) -> str:
    """The name of a module's first parameter."""
    return next(iter(inspect.signature(module.forward).parameters), "")


def first_input(name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The first input: the first in order, or that of the module's first parameter where all are given by name."""
    return inputs[0] if inputs else named.get(name, next(iter(named.values()), None))
