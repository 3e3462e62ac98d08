"""The return value of a training function: its value, other metrics and attributes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple, SupportsFloat

from maggy_like.protocol.messages import MAX_NAMES, MAX_NESTED, Assign, Finished, is_flat
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.values import ReportError, as_attributes, is_encodable, shortened
from maggy_like.worker.child.reporter import Reporter
from maggy_like.worker.child.reporter_hooks import ReporterHooks
from maggy_like.worker.child.sender import as_number, check_name, pick_objective


class Returned(NamedTuple):
    """The returned value of a training function."""

    value: float | None  # the objective, or None if the last report is the value
    metrics: dict[str, float]  # all numbers by name, including the objective
    attributes: dict[str, Any]  # entries that are not numbers


def read_returned(returned: object, reporter: Reporter, assign: Assign, task: WorkerTask) -> Finished:
    """Build the end of an attempt whose function returned; only rank 0 sends the returned value.

    Raise ReportError if it is not the value of a training (see :func:`read_value`), or cannot be saved.
    """
    trial, attempt = assign.trial, reporter.attempt
    if not reporter.is_main:
        return Finished(trial, attempt, "returned")
    hooks = ReporterHooks(reporter)
    if not task.returns_anything:
        found = read_value(returned, hooks.objective, is_reported=hooks.is_under_way)
        return Finished(
            trial,
            attempt,
            "returned",
            found.value,
            found.metrics,
            attributes=found.attributes,
            cut_at=hooks.cut_at,
            whole=hooks.was_silent,
        )
    if is_flat(returned, MAX_NESTED) and is_plain(returned):
        return Finished(trial, attempt, "returned", returned=returned)
    hooks.keep(returned)
    return Finished(trial, attempt, "returned", stored=True)


def is_plain(value: object) -> bool:
    """Whether a value arrives exactly as it is sent: numbers, text, and lists and dicts of them."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(type(key) is str and is_encodable(key) for key in value) and all(map(is_plain, value.values()))
    return (
        value is None
        or type(value) in (bool, float, bytes)
        or (type(value) is str and is_encodable(value))
        or (type(value) is int and -(1 << 63) <= value < 1 << 63)
    )


def read_value(returned: object, objective: str | None, *, is_reported: bool = False) -> Returned:
    """Split what the training function returned into the objective, other metrics and attributes.

    In a dict, entries that are not numbers are attributes. The last report is the value if the dict has only
    attributes, or if it lacks an objective that was reported. ``objective`` is None while no metric was named or
    reported. Raise ReportError if the objective is not a number, is missing, or is ambiguous.
    """
    if returned is None:
        return Returned(None, {}, {})
    if isinstance(returned, Mapping):
        return _read_dict({str(name): value for name, value in returned.items()}, objective, is_reported=is_reported)
    remedy = "return a number, a dict with a number, or None after reports"
    if isinstance(returned, tuple | list):
        remedy = "return a dict with a name for each number, such as {'loss': loss, 'seconds': seconds}"
    elif inspect.iscoroutine(returned):
        returned.close()  # else Python warns that nobody awaited it
        remedy = "return asyncio.run(...) of it"
    elif inspect.isgenerator(returned):
        remedy = "call reporter.report(...) instead of yield, or return a number"
    return Returned(as_number("train_fn's value", returned, remedy), {}, {})


def _read_dict(returned: Mapping[str, Any], objective: str | None, *, is_reported: bool) -> Returned:
    if isinstance(status := returned.get("status"), str) and status == "fail":  # Hyperopt's: its loss does not count
        raise ReportError(
            "train_fn must raise an exception in a trial that fails, got status='fail'; if its value should count, "
            "use another name than 'status'"
        )
    if objective is not None and objective in returned:
        as_number(f"train_fn's {objective!r}", returned[objective])
    metrics = {
        name: value
        for name, value in returned.items()
        if name == objective or (_is_number(value) and not _is_flag(value))
    }
    if not metrics and objective is None:
        metrics = {name: value for name, value in returned.items() if _is_flag(value)}
    attributes = as_attributes({name: value for name, value in returned.items() if name not in metrics})
    if len(metrics) > MAX_NAMES:
        raise ReportError(
            f"train_fn must return at most {MAX_NAMES} metrics, got {len(metrics)}; save the others to a file"
        )
    numbers = {name: _as_returned(f"train_fn's {name!r}", value) for name, value in metrics.items()}
    for name in numbers:
        check_name(name)
    if objective is None:
        doubtful = {name: value for name, value in returned.items() if name in numbers or _was_meant_as_number(value)}
        if not numbers:
            given = ", ".join(f"{name!r}: {shortened(value)}" for name, value in list(returned.items())[:5])
            raise ReportError(
                f"train_fn must return a number, got none: {{{given}}}; return the objective as a number, or report it"
            )
        objective = pick_objective(doubtful, None)
    elif not numbers or (is_reported and objective not in numbers):
        return Returned(None, numbers, attributes)
    return Returned(float(numbers[pick_objective(numbers, objective)]), numbers, attributes)


def _as_returned(what: str, value: object) -> float:
    """Return a returned number: an integer as it is, if it can be sent, since a float may round it."""
    if isinstance(value, Integral) and not _is_flag(value) and -(1 << 63) <= (whole := int(value)) < 1 << 63:
        return whole
    return as_number(what, value)


def _is_number(value: object) -> bool:
    try:
        as_number("", value)
    except ReportError:
        return False
    return True


def _is_flag(value: object) -> bool:
    """Whether it is a boolean of Python or numpy, which is an attribute unless it is the objective."""
    return type(value).__name__ == "bool"


def _was_meant_as_number(value: object) -> bool:
    """Whether it looks like a number but is not one: digits as text, or an array of several.

    In that case no other entry becomes the objective merely because it is the only number.
    """
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, SupportsFloat) and not _is_flag(value)
