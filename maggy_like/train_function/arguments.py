"""Calling a training function by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

INJECTED = ("reporter", "config", "budget")
"""Parameters of a training function that are filled by the runtime, not by the search space."""


class HasBudget(Protocol):
    """Whatever can stand for ``reporter``."""

    @property
    def budget(self) -> int:
        """Steps granted."""


def arguments_for(
    parameters: Iterable[inspect.Parameter], config: Mapping[str, Any], reporter: HasBudget
) -> dict[str, Any]:
    """The arguments of a training function that the configuration or the runtime fills.

    Args:
        parameters: The function's: names of the search space, ``reporter``, ``config`` (all
            parameters as a dict), ``budget`` (the steps granted), or ``**anything`` for the rest.
    """
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**config, **arguments}
        elif parameter.name in config:
            arguments[parameter.name] = config[parameter.name]
        elif parameter.name == "reporter":
            arguments["reporter"] = reporter
        elif parameter.name == "config":
            arguments["config"] = dict(config)
        elif parameter.name == "budget":  # is read only then: see Reporter.budget
            arguments["budget"] = reporter.budget
    return arguments
