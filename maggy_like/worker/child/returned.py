"""What a training function returned: its objective, its other metrics, and its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsFloat

from maggy_like.protocol.attributes import as_attributes
from maggy_like.protocol.fields import MAX_NAMES, MAX_NESTED, is_flat
from maggy_like.protocol.messages import Assign, Finished
from maggy_like.protocol.report_error import ReportError
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.texts import is_encodable, shortened
from maggy_like.worker.child.metrics import as_number, check_name, pick_objective
from maggy_like.worker.child.reporter import Reporter


class Returned(NamedTuple):
    """What was returned.

    Attributes:
        value: The objective, or None to let the last report stand.
        metrics: All numbers by name, the objective among them.
        attributes: What is no number.
    """

    value: float | None
    metrics: dict[str, float]
    attributes: dict[str, Any]


def read_returned(returned: object, reporter: Reporter, assign: Assign, task: WorkerTask) -> Finished:
    """How an attempt ended whose function returned; only rank 0 says what it returned.

    Raises:
        ReportError: It is no training's value (see :func:`read_value`), or cannot be saved.
    """
    trial, attempt = assign.trial, assign.attempt
    if not reporter.is_main:
        return Finished(trial, attempt, "returned")
    if not task.returns_anything:
        found = read_value(returned, reporter.objective, is_reported=reporter.is_under_way)
        return Finished(
            trial,
            attempt,
            "returned",
            found.value,
            found.metrics,
            attributes=found.attributes,
            cut_at=reporter.cut_at,
        )
    if is_flat(returned, MAX_NESTED) and is_plain(returned):
        return Finished(trial, attempt, "returned", returned=returned)
    reporter.keep(returned)
    return Finished(trial, attempt, "returned", stored=True)


def is_plain(value: object) -> bool:
    """Whether a value arrives as it is sent: numbers, text, and lists and dicts of such."""
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
    """The objective, the other metrics and the attributes in what the training function returned.

    In a dict, what is no number is an attribute. A dict of attributes alone lets the last report stand, and so does any
    dict without the objective where that was reported.

    Args:
        objective: Name of the optimised metric, or None while none was named or reported.
        is_reported: Whether there was a report.

    Raises:
        ReportError: The objective is no number or is missing, or it is not clear which number it is.
    """
    if returned is None:
        return Returned(None, {}, {})
    if isinstance(returned, Mapping):
        return _read_dict({str(name): value for name, value in returned.items()}, objective, is_reported=is_reported)
    try:
        return Returned(as_number("train_fn's value", returned), {}, {})
    except ReportError as error:
        raise ReportError(f"{error}; return a number, a dict with one, or None after reports") from None


def _read_dict(returned: Mapping[str, Any], objective: str | None, *, is_reported: bool) -> Returned:
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
        raise ReportError(f"train_fn returned {len(metrics)} metrics; return at most {MAX_NAMES}, and save the rest")
    numbers = {name: as_number(f"train_fn's {name!r}", value) for name, value in metrics.items()}
    for name in numbers:
        check_name(name)
    if objective is None:
        doubtful = {name: value for name, value in returned.items() if name in numbers or _was_meant_as_number(value)}
        if not numbers:
            given = ", ".join(f"{name!r}: {shortened(value)}" for name, value in list(returned.items())[:5])
            raise ReportError(
                f"train_fn returned no number: {{{given}}}; return the objective as a number, or report it"
            )
        objective = pick_objective(doubtful, None)
    elif not numbers or (is_reported and objective not in numbers):
        return Returned(None, numbers, attributes)
    return Returned(numbers[pick_objective(numbers, objective)], numbers, attributes)


def _is_number(value: object) -> bool:
    try:
        as_number("", value)
    except ReportError:
        return False
    return True


def _is_flag(value: object) -> bool:
    """Whether it is a boolean, Python's or numpy's: a remark, unless it is the objective."""
    return type(value).__name__ == "bool"


def _was_meant_as_number(value: object) -> bool:
    """Whether it is no number and looks like one: digits as text, or an array of several.

    Then another entry must not become the objective only because it is the one number that is left.
    """
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, SupportsFloat) and not _is_flag(value)
