"""Values of parameters: JSON's scalars, tuples and lists of them, and how to read them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from optimizers.checks import short
from optimizers.errors import SearchSpaceError

Scalar = bool | int | float | str | None
"""The value of most parameters: a scalar of JSON."""

Value = Scalar | tuple[Any, ...] | list[Any]
"""A parameter's value: a scalar, or a tuple or list of values if the values are listed."""

When = Mapping[str, Scalar | Sequence[Value]]
"""A condition: for each parent the value, or the list of values, for which a parameter is active."""


def plain(value: object) -> object:
    """Return a numpy scalar as a Python one, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def without_numpy(value: object) -> object:
    """Return a numpy scalar as a Python one, a numpy array as a list, and anything else unchanged."""
    return value.tolist() if isinstance(value, np.ndarray) else plain(value)


def same(a: object, b: object) -> bool:
    """Return whether two values are equal.

    ``1`` equals ``1.0``, and ``(1, 2)`` equals ``[1, 2]``, but ``1`` does not equal ``True``.
    """
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def read_scalar(value: object) -> Scalar:
    """Return ``value`` as a plain Python scalar."""
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SearchSpaceError(f"a number must be finite, got {short(value)}; use a finite number, or None")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise SearchSpaceError(f"an integer must fit into 64 bits, got {short(value)}; use a float or a str")
    if isinstance(value, str) and _is_broken(value):
        raise SearchSpaceError(f"a text must be valid UTF-8, got {short(value)}; use another text")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # the exact types were just compared
    name = getattr(value, "__name__", None)
    use = f"its name, {name!r}," if isinstance(name, str) else "a name"
    raise SearchSpaceError(
        f"a value must be a bool, int, float, str or None, got {short(value)}; use {use} and look it up in train_fn, "
        "as in TABLE[name]"
    )


def _is_broken(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, for example from a file name that could not be decoded."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def read_value(value: object) -> Value:
    """Return ``value`` as plain scalars, in tuples and lists as given."""
    if type(value) is tuple:
        return tuple(map(read_value, value))
    return list(map(read_value, value)) if type(value) is list else read_scalar(value)


def fresh(value: Value) -> Value:
    """Return a copy of ``value`` that shares no list with it."""
    return type(value)(map(fresh, value)) if isinstance(value, tuple | list) else value


def to_json(value: Any) -> Any:
    """Return the JSON form of a value. JSON has no tuples; :func:`from_json` reads them back exactly.

    Example:
        >>> to_json([(64, 64), "relu"])
        [{'tuple': [64, 64]}, 'relu']
    """
    if isinstance(value, tuple):
        return {"tuple": [to_json(inner) for inner in value]}
    return [to_json(inner) for inner in value] if isinstance(value, list) else value


def from_json(form: Any) -> Any:
    """Return the value of a JSON form."""
    if isinstance(form, dict):
        return tuple(map(from_json, form["tuple"])) if form.keys() == {"tuple"} else form
    return [from_json(inner) for inner in form] if isinstance(form, list) else form


def read_values(values: object, kind: str) -> tuple[Value, ...]:
    """Return the values of a domain of type ``kind``: at least one, all different."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not hasattr(values, "__iter__"):
        names = [values] if isinstance(values, str) else [*values] if isinstance(values, Mapping | Set) else None
        use = "[...]" if names is None else short(names)
        raise SearchSpaceError(f"values of {kind} must be a list, got {short(values)}; use {kind}({use})")
    read = tuple(map(read_value, values))
    if not read:
        raise SearchSpaceError(f"values of {kind} must not be empty; use at least one value")
    seen: set[object] = set()
    for value in read:
        key = _key(value)
        if key in seen:
            raise SearchSpaceError(f"values of {kind} must differ, got {short(value)} twice; remove one")
        seen.add(key)
    return read


def _key(value: Value) -> object:
    """Return a hashable key that is equal for equal values."""
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return isinstance(value, bool), value


def read_when(when: When | None) -> dict[str, tuple[Value, ...]] | None:
    """Return a condition with a tuple of values for each parent, or None."""
    if when is None:
        return None
    if not isinstance(when, Mapping) or not all(isinstance(parent, str) for parent in when):
        raise SearchSpaceError(
            f"when must be a dict {{name: value}}, got {short(when)}; use when={{'optimizer': 'sgd'}}"
        )
    conditions = {}
    for parent, values in when.items():
        if isinstance(values, Set):
            raise SearchSpaceError(
                f"values of when[{parent!r}] must be a list, got {values!r}; use {sorted(values, key=repr)!r}"
            )
        listed = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
        conditions[parent] = tuple(map(read_value, listed))
        if not conditions[parent]:
            raise SearchSpaceError(f"values of when[{parent!r}] must not be empty; use at least one value")
    return conditions or None


def read_number(value: object) -> float | None:
    """Return ``value`` as a finite Python number, or None."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= sys.float_info.max else None
