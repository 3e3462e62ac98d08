"""Checks the options of optimizers, and describes them so that two runs can be compared."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence, Set
from typing import Any

from optimizers.errors import OptimizerError


def integer(name: str, value: Any, *, least: int, hint: str = "") -> int:
    """An integer of at least ``least``, whatever its type (NumPy's integers are integers too).

    Args:
        name: The option.
        value: What was given.
        least: The smallest that is allowed.
        hint: What to use instead, for the message.

    Raises:
        OptimizerError: It is no integer, or too small.

    Example:
        >>> integer("eta", np.int64(3), least=2)
        3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise OptimizerError(f"{name} must be an integer of at least {least}, got {value!r}{hint and '; '}{hint}")
    return number


def describe(made: object) -> str:
    """The class of ``made`` and the options that it was made with, as they would be typed.

    An option is an argument of ``__init__`` that the object holds in an attribute of its name, with or without an
    underscore before it. What has no plain form stands with the name of its class or function, never with an
    address: the same options give the same text in every process.

    Example:
        >>> describe(MedianRule(ASHA(eta=9), grace=2))
        "MedianRule(optimizer=ASHA(eta=9, min_budget=1, mode='promotion', ...), grace=2, min_trials=3)"
    """
    missing = object()
    options = []
    for name in inspect.signature(type(made).__init__).parameters:
        value = getattr(made, name, getattr(made, f"_{name}", missing))
        if name != "self" and value is not missing:
            options.append(f"{name}={_text(value)}")
    return f"{type(made).__name__}({', '.join(options)})"


def _text(value: Any) -> str:
    describes = getattr(value, "describe", None)
    if callable(describes) and not isinstance(value, type):
        return str(describes())
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_text(value[key])}" for key in value) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(getattr(value, "__qualname__", type(value).__qualname__))
