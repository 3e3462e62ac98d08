"""The user's values in messages and files: valid Unicode, plain data, and the error for anything else."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def is_encodable(text: str) -> bool:
    r"""Return whether a text can be sent: it has no lone surrogates, as file names have that are not UTF-8.

    Example:
        >>> [is_encodable(text) for text in ("café", "caf\udce9")]
        [True, False]
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shortened(value: object) -> str:
    """Return a value's repr; the middle of a long one is left out."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python does not write ints of more than 4300 digits
        return f"one of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"


def encodable(text: str) -> str:
    r"""Return the text with lone surrogates as escapes.

    Example:
        >>> encodable("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """Return the message of an exception, also of one whose own ``__str__`` fails."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as Python writes it in tracebacks


class ReportError(ValueError):
    """A report or a returned value is not valid, or a state cannot be saved; raised inside ``train_fn``."""


MAX_ATTRIBUTES = 100
"""Maximum number of attributes to keep per trial."""

MAX_SIZE = 4000
"""Maximum characters of an attribute as JSON. A longer text loses its middle; any other value becomes a short text."""

MAX_NAME = 200
"""Maximum characters of an attribute's name."""

MAX_DEPTH = 8
"""Maximum nesting of lists and dicts."""


def as_attributes(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes in the form that is kept: what a training function returned apart from its numbers.

    Booleans, numbers, text and None, and lists and dicts of these, are kept unchanged; anything else becomes its
    shortened repr. The function never raises, since a finished training must not fail because of a remark. Applied to
    its own result it changes nothing, so the driver can bound what workers send.
    """
    names = list(values)[:MAX_ATTRIBUTES]
    return {_cut(_text(name), MAX_NAME): _attribute(values[name]) for name in names}


def attribute_names(returned: Iterable[Iterable[str]], taken: Collection[str]) -> dict[str, str]:
    """Return a column for each name that trials returned: that name, or ``attribute_NAME`` if it is taken."""
    found = list(dict.fromkeys(name for names in returned for name in names))
    names: dict[str, str] = {}
    used = {*taken, *found}
    for name in found:
        column = name
        while column in taken or (column != name and column in used):
            column = f"attribute_{column}"
        names[name] = column
        used.add(column)
    return names


def _attribute(value: Any) -> Any:
    try:
        plain = _plain(value, MAX_DEPTH)
        size = len(msgspec.json.encode(plain))
    except (ValueError, RecursionError):
        return _cut(_repr(value), MAX_SIZE)
    if isinstance(plain, str):
        return _cut(plain, MAX_SIZE)
    return plain if size <= MAX_SIZE else _cut(_repr(value), MAX_SIZE)


def _plain(value: Any, depth: int) -> Any:
    """Convert a value to plain data."""
    if depth == 0:
        raise ValueError("nested too deeply")
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        return _text(value)
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else _repr(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))  # JSON has no NaN
    if isinstance(value, list | tuple | dict) and len(value) > MAX_SIZE:
        raise ValueError("too large")
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {_text(key): _plain(item, depth - 1) for key, item in value.items()}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return _plain(value.item(), depth - 1)
    return _repr(value)


def _text(value: Any) -> str:
    return encodable(value if isinstance(value, str) else _repr(value))


def _repr(value: Any) -> str:
    try:
        return encodable(_REPR.repr(value))
    except Exception:  # for example, Python does not write ints of more than 4300 digits
        return f"a {type(value).__name__}"


def _cut(text: str, size: int) -> str:
    if len(text) <= size:
        return text
    half = (size - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
