"""The values that parameters take (JSON's scalars, tuples and lists of them), and how they are read."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from optimizers.checks import short
from optimizers.errors import SearchSpaceError

Scalar = bool | int | float | str | None
"""What most parameters' values are: JSON's scalars."""

Value = Scalar | tuple[Any, ...] | list[Any]
"""What a parameter's value may be: a scalar, or a tuple or list of values, where the values are listed."""

When = Mapping[str, Scalar | Sequence[Value]]
"""A condition: for each parent the value, or the list of values, with which a parameter is active."""


def plain(value: object) -> object:
    """A numpy scalar as the Python one it stands for; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def same(a: object, b: object) -> bool:
    """Whether two values are the same: ``1`` and ``1.0`` are, ``(1, 2)`` and ``[1, 2]`` too, ``1`` and ``True`` not."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def read_scalar(value: object) -> Scalar:
    """``value`` as a plain Python scalar.

    Raises:
        SearchSpaceError: It is not one that JSON has.
    """
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SearchSpaceError(f"{value!r} has no JSON form; use a finite number, or None")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise SearchSpaceError(f"{short(value)} does not fit into 64 bits; use a smaller number, a float or a str")
    if isinstance(value, str) and _is_broken(value):
        raise SearchSpaceError(f"{value!r} has half a character, which no UTF-8 has; use another text")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # the exact types were just compared
    raise SearchSpaceError(
        f"a value must be a bool, int, float, str or None, got {value!r}; "
        "give it a name and look it up in train_fn: TABLE[name]"
    )


def _is_broken(text: str) -> bool:
    """Whether a text has half of a surrogate pair, as from a file name that could not be decoded."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def read_value(value: object) -> Value:
    """``value`` as plain scalars, in tuples and lists as given.

    Raises:
        SearchSpaceError: There is something else in it.
    """
    if type(value) is tuple:
        return tuple(map(read_value, value))
    return list(map(read_value, value)) if type(value) is list else read_scalar(value)


def fresh(value: Value) -> Value:
    """A copy of ``value`` that shares no list with it."""
    return type(value)(map(fresh, value)) if isinstance(value, tuple | list) else value


def to_json(value: Any) -> Any:
    """The form of a value in JSON, which has lists and no tuples: :func:`from_json` reads it back exactly.

    Example:
        >>> to_json([(64, 64), "relu"])
        [{'tuple': [64, 64]}, 'relu']
    """
    if isinstance(value, tuple):
        return {"tuple": [to_json(inner) for inner in value]}
    return [to_json(inner) for inner in value] if isinstance(value, list) else value


def from_json(form: Any) -> Any:
    """The value of :func:`to_json`."""
    if isinstance(form, dict):
        return tuple(map(from_json, form["tuple"])) if form.keys() == {"tuple"} else form
    return [from_json(inner) for inner in form] if isinstance(form, list) else form


def read_values(values: object, kind: str) -> tuple[Value, ...]:
    """The values of a ``kind`` of domain: at least one, no two the same.

    Raises:
        SearchSpaceError: They are not.
    """
    if isinstance(values, (str, bytes, Mapping, Set)) or not hasattr(values, "__iter__"):
        raise SearchSpaceError(f"{kind} takes its values in a list, got {values!r}; use {kind}([...])")
    read = tuple(map(read_value, values))
    if not read:
        raise SearchSpaceError(f"{kind} has no values; give at least one")
    seen: set[object] = set()
    for value in read:
        key = _key(value)
        if key in seen:
            raise SearchSpaceError(f"{kind} has the value {value!r} twice; leave one out")
        seen.add(key)
    return read


def _key(value: Value) -> object:
    """A hashable key: equal for values that are the same."""
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return isinstance(value, bool), value


def read_when(when: When | None) -> dict[str, tuple[Value, ...]] | None:
    """A condition with a tuple of values for each parent; None if there is none.

    Raises:
        SearchSpaceError: It is not a condition.
    """
    if when is None:
        return None
    if not isinstance(when, Mapping) or not all(isinstance(parent, str) for parent in when):
        raise SearchSpaceError(f"when must be a dict {{name: value}}, got {when!r}")
    conditions = {}
    for parent, values in when.items():
        many = isinstance(values, Sequence) and not isinstance(values, str)
        conditions[parent] = read_values(values if many else [values], f"when[{parent!r}]")
    return conditions or None


def read_number(value: object) -> float | None:
    """``value`` as a finite plain number, an int where it is one; None if it is no such number."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= sys.float_info.max else None
