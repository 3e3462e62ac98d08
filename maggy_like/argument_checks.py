"""Checks of single arguments and of optional packages, whose errors name the mistake and the remedy."""

from __future__ import annotations

import importlib.util
import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from numbers import Number, Real
from os import PathLike
from typing import Any, TypeVar

from maggy_like.errors import ConfigError, UserError
from optimizers.checks import as_int, did_you_mean, read_text, short

T = TypeVar("T")

_ENDLESS = threading.TIMEOUT_MAX
"""Seconds that no clock will ever count; Python cannot wait for more."""


LARGEST = 2**63 - 1
"""The largest integer that every message and record can hold."""


def whole(name: str, value: Any, *, least: int, most: int | None = LARGEST, remedy: str = "") -> int:
    """Check that an argument is an integer of at least ``least``; numpy's integers are.

    The message ends with the remedy, unless the value is a number in another spelling.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number, remedy = least - 1, as_int(value, least) or remedy
    if isinstance(value, bool) or number < least:
        hint = f"; {remedy}" if remedy else ""
        raise ConfigError(f"{name} must be an integer of at least {least}, got {short(value)}{hint}")
    if most is not None and number > most:
        limit = "below 2**63" if most == LARGEST else f"of at most {most}"
        raise ConfigError(f"{name} must be an integer {limit}, got {short(value)}")
    return number


def real(value: object) -> float | None:
    """Return a number, also one of numpy, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:  # an int may be larger than any float
        return None


def flag(name: str, value: Any, remedy: str) -> bool:
    """Check that an argument is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {short(value)}; {remedy}")
    return value


def seconds(name: str, value: Any, *, least: float = 0.0) -> float | None:
    """Check that an argument is a positive, finite number of seconds of at least ``least``; None is no limit."""
    if value is None:
        return None
    given = real(value)
    if given is None or not (0 < given < _ENDLESS and given >= least):
        kind = f"number of seconds of at least {least:g}" if least else "positive number of seconds"
        number = value.total_seconds() if isinstance(value, timedelta) else read_text(value)
        is_number = isinstance(number, int | float) and number is not value and 0 < number < _ENDLESS
        remedy = f"use {number:g}" if is_number else f"leave it out for no limit, or use {name}=3600 for an hour"
        raise ConfigError(f"{name} must be a {kind}, got {short(value)}; {remedy}")
    return given


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """Check that an argument is one of some words."""
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, known))}, got {short(value)}{near}")
    return str(value)


def listed(name: str, value: Sequence[T], of: str) -> Sequence[T]:
    """Check that an argument is a list, and return it."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        got, given = _written(value)
        is_one = value is not None and not isinstance(value, Number)
        remedy = f"use {name}={given}" if is_one else f"leave it out, or use {name}=[...]"
        raise ConfigError(f"{name} takes a list of {of}, got {got}; {remedy}")
    return value


def _written(value: object) -> tuple[str, str]:
    """A single thing in words, and a list of it as it would be typed; of most objects only their name can be."""
    if hasattr(value, "to_dict"):
        return f"a {type(value).__name__}", "table.to_dict('records')"
    if value is None or isinstance(value, str | Mapping | PathLike | Number):
        return short(value), f"[{short(value)}]"
    if isinstance(value, Iterable):
        return short(value), "list(...)"
    if name := getattr(value, "__name__", ""):
        return name, f"[{name}]"
    kind = type(value).__name__
    return f"a {kind}", f"[{kind.lower()}]"


EXTRAS = {
    "keras": "keras",
    "lightgbm": "lightgbm",
    "lightning": "lightning",
    "mlflow": "mlflow",
    "optuna": "optuna",
    "pandas": "pandas",
    "plotly": "report",
    "pyarrow": "ml",
    "pyspark": "spark",
    "tensorboard": "tensorboard",
    "torch": "torch",
    "transformers": "transformers",
    "xgboost": "xgboost",
}
"""The extra of maggy_like that brings each package."""


def require(package: str, purpose: str) -> None:
    """Check that a package of an extra is installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{purpose} needs {package}; install it with: pip install 'maggy_like[{EXTRAS[package]}]'")
