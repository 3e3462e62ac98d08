"""Calling the user's functions by the names of their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from maggy_like.errors import ConfigError
from maggy_like.train_function.arguments import INJECTED as ALWAYS_INJECTED
from optimizers.checks.near_names import did_you_mean
from optimizers.comparisons.repeats import SEED

FROM_DATA = ("features", "n_features")
"""Parameters that a variant fills if the study has data."""

INJECTED = ("variant", "model", *FROM_DATA)
"""Parameters of a training function that a variant fills."""

RESERVED = (SEED, *INJECTED, *ALWAYS_INJECTED)
"""Names that neither a study nor what is searched may set."""

NO_MODEL = "the study has no model; give its factory: AblationStudy(model=make_model)"
NO_DATA = "the study has no data; give it, or the names of its columns: AblationStudy(data=table)"


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none if they cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def names_of(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names of a function's parameters, without those of ``*`` and ``**``."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = parameters_of(function) if function is not None else {}
    return tuple(name for name, parameter in parameters.items() if parameter.kind not in many)


def takes_anything(function: Callable[..., Any] | None) -> bool:
    """Whether there is a ``**`` parameter."""
    parameters = parameters_of(function) if function is not None else {}
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def takes(function: Callable[..., Any] | None, name: str) -> bool:
    """Whether a parameter of the study's configuration reaches a function, by its name or by ``**``."""
    return name in names_of(function) or takes_anything(function)


def call(
    function: Callable[..., Any],
    config: Mapping[str, Any],
    from_data: Mapping[str, Any],
    given: Mapping[str, Any],
    what: str,
) -> Any:
    """Call with what the function has parameters for, and with all that is ``given``.

    A ``**`` parameter gets all of ``config``; what comes from data is given to parameters of that name alone.

    Raises:
        ConfigError: A parameter without a default is not filled.
    """
    names = names_of(function)
    known = {**config, **from_data}
    wanted = {*names, *(config if takes_anything(function) else ())}
    arguments = {name: value for name, value in known.items() if name in wanted} | dict(given)
    for name in names:
        if name not in arguments and parameters_of(function)[name].default is inspect.Parameter.empty:
            near = did_you_mean(name, known)
            raise ConfigError(f"nothing fills the parameter {name!r} of {what}{near}; {_mend(name, known)}")
    return function(**arguments)


def default_of(name: str, *functions: Callable[..., Any] | None) -> Any:
    """The default of a parameter in the first function that has one; ``inspect.Parameter.empty`` if none has."""
    for function in functions:
        parameter = parameters_of(function).get(name) if function is not None else None
        if parameter is not None and parameter.default is not inspect.Parameter.empty:
            return parameter.default
    return inspect.Parameter.empty


def _mend(name: str, known: Mapping[str, Any]) -> str:
    if name in FROM_DATA:
        return NO_DATA
    if name in RESERVED:
        seeded = ", and torch is seeded before `model` is built" if name == SEED else ""
        return (
            f"only train_fn gets it{seeded}: leave it out, or give it a default and build the model in train_fn: "
            f"variant.model({name}={name})"
        )
    return f"give it a default, or a value in AblationStudy(config={{{name!r}: ...}}) (known: {[*known]})"
