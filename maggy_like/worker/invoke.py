"""Calling a training function by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

INJECTED = ("reporter", "config", "budget")
"""Parameters of a training function that are filled by the runtime, not by the search space."""


class HasBudget(Protocol):
    """Whatever can stand for ``reporter``."""

    budget: int


def call_train_fn(train_fn: Callable[..., Any], config: Mapping[str, Any], reporter: HasBudget) -> Any:
    """Call ``train_fn`` with those of its parameters that the configuration or the runtime fills.

    Args:
        train_fn: A function whose parameters are names of the search space, ``reporter``,
            ``config`` (all parameters as a dict) or ``budget`` (the steps granted).
    """
    injected = {"reporter": reporter, "config": dict(config), "budget": reporter.budget}
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(train_fn).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**config, **arguments}
        elif parameter.name in config:
            arguments[parameter.name] = config[parameter.name]
        elif parameter.name in injected:
            arguments[parameter.name] = injected[parameter.name]
    return train_fn(**arguments)
