"""The user's values as messages and files hold them: valid Unicode, plain data, and the error for anything else."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from optimizers.core.trial import Trial

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def is_encodable(text: str) -> bool:
    r"""Whether a text can be sent. A lone surrogate, such as file names have that are no UTF-8, cannot.

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
    """A value's repr, with its middle left out where it is long."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python writes no int of more than 4300 digits
        return f"one of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"


def encodable(text: str) -> str:
    r"""The text with lone surrogates written as escapes.

    Example:
        >>> encodable("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    return text.encode("utf-8", "backslashreplace").decode()


class ReportError(ValueError):
    """A report or a returned value is no measurement, or a state cannot be saved; raised inside ``train_fn``."""


MAX_ATTRIBUTES = 100
"""How many attributes of a trial are kept."""

MAX_SIZE = 4000
"""Characters of an attribute as JSON. Of a longer text the middle is left out; anything else becomes a short text."""

MAX_NAME = 200
"""Characters of an attribute's name."""

MAX_DEPTH = 8
"""How deep lists and dicts may be nested."""


def as_attributes(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as they are kept; never raises, since a training that has ended must not fail of a remark.

    Booleans, numbers, text and None, and lists and dicts of such, are kept as they are; anything else as its
    shortened repr. What was kept once is kept unchanged a second time, so the driver bounds what workers send.

    Example:
        >>> as_attributes({"note": "hello", "layers": (64, 32), "device": object})
        {'note': 'hello', 'layers': [64, 32], 'device': "<class 'object'>"}
    """
    names = list(values)[:MAX_ATTRIBUTES]
    return {_cut(_text(name), MAX_NAME): _attribute(values[name]) for name in names}


def attribute_names(trials: Iterable[Trial], taken: Collection[str]) -> dict[str, str]:
    """A column for each attribute that one of the trials has: its name, or ``attribute_NAME`` where that is taken."""
    found = list(dict.fromkeys(name for trial in trials for name in trial.attributes))
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
    """A value as plain data.

    Raises:
        ValueError: It is nested too deeply, or too large.
    """
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
    """Text that can be sent and written; lone surrogates become escapes."""
    return encodable(value if isinstance(value, str) else _repr(value))


def _repr(value: Any) -> str:
    try:
        return encodable(_REPR.repr(value))
    except Exception:  # Python writes no int of more than 4300 digits, say
        return f"a {type(value).__name__}"


def _cut(text: str, size: int) -> str:
    if len(text) <= size:
        return text
    half = (size - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
