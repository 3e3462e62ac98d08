"""Metrics as floats, and which of them is the objective."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping
from typing import SupportsFloat

from maggy_like.protocol.fields import MAX_NAME, MAX_STEP
from maggy_like.protocol.report_error import ReportError
from maggy_like.protocol.texts import is_encodable, shortened


def pick_objective(metrics: Mapping[str, object], wanted: str | None, *, is_search: bool = True) -> str:
    """The name of the objective among ``metrics``.

    Args:
        metrics: What was reported.
        wanted: Its name, if it is known.
        is_search: Whether it matters; where nothing is optimised, the first will do.

    Raises:
        ReportError: It is missing, or there are several and none was chosen.
    """
    if not metrics:
        named = wanted or "accuracy"
        raise ReportError(f"report() must have a metric, got none; use report({named}={named}, step=step)")
    given = ", ".join(sorted(metrics))
    if wanted is not None:
        if wanted in metrics:
            return wanted
        near = difflib.get_close_matches(wanted, list(metrics), 1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ReportError(
            f"the metric {wanted!r} is missing; given: {given}{meant}. Report it, or pass "
            f"metric={repr(near[0]) if near else 'NAME'}"
        )
    if len(metrics) == 1 or not is_search:
        return next(iter(metrics))
    raise ReportError(f"which metric is optimised? Given: {given}. Pass metric=NAME to lagom")


def as_number(what: str, value: object) -> float:
    """A metric as a float; numpy scalars and tensors of one element serve too.

    Raises:
        ReportError: It is no number.
    """
    if isinstance(value, float | int | SupportsFloat) and not isinstance(value, str | bytes):
        detach = getattr(value, "detach", None)  # torch warns of a loss that is turned into a float as it is
        try:
            return float(value if detach is None else detach())
        except (TypeError, ValueError, OverflowError, RuntimeError):
            pass
    method = what.partition("(")[0]
    remedy = f"; use {method}(**metrics)" if isinstance(value, Mapping) and method in ("report", "average") else ""
    raise ReportError(f"{what} must be a number, got {shortened(value)} of type {type(value).__name__}{remedy}")


def as_step(step: object) -> int:
    """A step as an int.

    Raises:
        ReportError: It is no whole number, or too large to be sent.
    """
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        remedy = f"; use {int(step)}" if isinstance(step, float) and step.is_integer() else ""
        raise ReportError(f"step must be a whole number, got {shortened(step)}{remedy}") from None
    if not -MAX_STEP <= number <= MAX_STEP:
        raise ReportError(f"step must be below 2**63, got {shortened(number)}; count epochs, batches or samples")
    return number


def check_name(name: str) -> None:
    """See that a metric's name can be sent.

    Raises:
        ReportError: It cannot.
    """
    if len(name) > MAX_NAME:
        raise ReportError(f"the metric's name {shortened(name)} has {len(name)} characters; use at most {MAX_NAME}")
    if not is_encodable(name):
        raise ReportError(f"the metric's name {shortened(name)} is no valid Unicode text; rename it")
