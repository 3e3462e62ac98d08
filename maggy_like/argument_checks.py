"""Checks of single arguments, each with an error that names the argument, its value and the remedy."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from maggy_like.errors import ConfigError
from optimizers.checks.near_names import did_you_mean

T = TypeVar("T")


def whole(name: str, value: Any, *, least: int) -> int:
    """Check that an argument is a whole number of at least ``least``; numpy's integers are.

    Raises:
        ConfigError: It is not.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def seconds(name: str, value: Any, *, least: float = 0.0) -> float | None:
    """Check that an argument is a positive, finite number of seconds of at least ``least``; None is no limit.

    Raises:
        ConfigError: It is not.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf and value >= least):
        kind = f"number of seconds of at least {least:g}" if least else "positive number of seconds"
        raise ConfigError(f"{name} must be a {kind}, got {value!r}; leave it out for no limit")
    return float(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """Check that an argument is one of some words.

    Raises:
        ConfigError: It is not.
    """
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}{near}")
    return str(value)


def listed(name: str, value: Sequence[T], of: str) -> Sequence[T]:
    """Check that an argument is a list.

    Args:
        name: The argument's.
        value: The argument.
        of: What it is a list of.

    Raises:
        ConfigError: It is a single one, or nothing of the kind.

    Example:
        >>> listed("callbacks", [print], "functions of one event")
        [<built-in function print>]
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        remedy = f"leave it out, or use {name}=[...]" if value is None else f"use {name}=[{_short(value)}]"
        raise ConfigError(f"{name} takes a list of {of}, got {_short(value)}; {remedy}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else "..."
