"""Metrics as floats, and which of them is the objective."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import SupportsFloat


class ReportError(ValueError):
    """A report or a returned value is no measurement, or a state cannot be saved; raised inside ``train_fn``."""


def pick_objective(metrics: Mapping[str, object], wanted: str | None) -> str:
    """The name of the objective among ``metrics``.

    Raises:
        ReportError: It is missing, or there are several and nobody said which.
    """
    if wanted is not None:
        if wanted in metrics:
            return wanted
        given = ", ".join(sorted(metrics)) or "nothing"
        raise ReportError(f"the metric {wanted!r} is missing; given: {given}. Report it, or pass metric=NAME")
    if len(metrics) == 1:
        return next(iter(metrics))
    given = ", ".join(sorted(metrics)) or "nothing"
    raise ReportError(f"which metric is optimised? Given: {given}. Pass metric=NAME to lagom")


def as_number(what: str, value: object) -> float:
    """A metric as a float; numpy scalars and tensors of one element serve too.

    Raises:
        ReportError: It is no number.
    """
    if isinstance(value, SupportsFloat) and not isinstance(value, str | bytes):
        detach = getattr(value, "detach", None)  # torch warns of a loss that is turned into a float as it is
        try:
            return float(value if detach is None else detach())
        except (TypeError, ValueError, RuntimeError):
            pass
    raise ReportError(f"{what} must be a number, got {value!r} of type {type(value).__name__}")


def as_step(step: object) -> int:
    """A step as an int.

    Raises:
        ReportError: It is no whole number.
    """
    try:
        return operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        raise ReportError(f"step must be a whole number, got {step!r}") from None
