"""Checks the options of optimizers, and describes them so that two runs can be compared."""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any

from optimizers.errors import OptimizerError, UserError


def integer(
    name: str,
    value: Any,
    *,
    least: int,
    most: int | None = 2**63 - 1,
    hint: str = "",
    error: Callable[[str], UserError] = OptimizerError,
) -> int:
    """An integer of at least ``least``, whatever its type (NumPy's integers are integers too).

    Args:
        name: The option.
        value: What was given.
        least: The smallest that is allowed.
        most: The largest; None for any, where it is neither sent nor turned into a float.
        hint: What to use instead, for the message.
        error: What to raise, where it is no option of an optimizer.

    Raises:
        OptimizerError: It is no integer, too small, or too large.

    Example:
        >>> integer("eta", np.int64(3), least=2)
        3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number, hint = least - 1, as_int(value, least) or hint
    if most is not None and number > most:
        raise error(f"{name} must be at most {most}, got {short(value)}{hint and '; '}{hint}")
    if isinstance(value, bool) or number < least:
        raise error(f"{name} must be an integer of at least {least}, got {short(value)}{hint and '; '}{hint}")
    return number


def as_int(value: object, least: float) -> str:
    """A clause with the integer to write if a whole number of at least ``least`` was given as a float, or nothing.

    Example:
        >>> as_int(1e3, 1)
        'use 1000'
    """
    if isinstance(value, Integral) or not isinstance(value, Real) or not math.isfinite(value):
        return ""
    number = int(float(value))
    return f"use {number}" if number == value and least <= number < 2**63 else ""


def real(name: str, value: Any, what: str, fits: Callable[[float], bool], hint: str = "") -> float:
    """A finite number that fits, whatever its type.

    Args:
        name: The option.
        value: What was given.
        what: Which numbers fit, for the message.
        fits: Whether a number does.
        hint: What to use instead, for the message.

    Raises:
        OptimizerError: It is no number, or does not fit.

    Example:
        >>> real("quantile", 0.25, "a number above 0 and not above 0.5", lambda share: 0.0 < share <= 0.5)
        0.25
    """
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, Real):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if math.isfinite(number) and fits(number):
        return int(number) if isinstance(value, int) else number
    raise OptimizerError(f"{name} must be {what}, got {short(value)}{hint and '; '}{hint}")


def short(value: object) -> str:
    """A value as it is typed, or its beginning."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


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
