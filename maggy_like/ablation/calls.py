"""Calling the user's functions by the names of their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from maggy_like.errors import ConfigError
from optimizers.names import did_you_mean


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none if they cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def takes_anything(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether there is a ``**`` parameter."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def call(function: Callable[..., Any], known: Mapping[str, Any], given: Mapping[str, Any], what: str) -> Any:
    """Call with those of ``known`` that the function has parameters for, and with all that is ``given``.

    Raises:
        ConfigError: A parameter without a default is not filled.
    """
    parameters = parameters_of(function)
    arguments = {name: value for name, value in known.items() if name in parameters} | dict(given)
    for parameter in parameters.values():
        is_plain = parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        if is_plain and parameter.default is inspect.Parameter.empty and parameter.name not in arguments:
            raise ConfigError(
                f"nothing fills the parameter {parameter.name!r} of {what}{did_you_mean(parameter.name, known)}; give "
                f"it a default, or a value in AblationStudy(config={{{parameter.name!r}: ...}}) (known: {[*known]})"
            )
    return function(**arguments)


def default_of(name: str, *functions: Callable[..., Any] | None) -> Any:
    """The default of a parameter in the first function that has one; ``inspect.Parameter.empty`` if none has."""
    for function in functions:
        parameter = parameters_of(function).get(name) if function is not None else None
        if parameter is not None and parameter.default is not inspect.Parameter.empty:
            return parameter.default
    return inspect.Parameter.empty
