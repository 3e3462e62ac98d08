"""The values that parameters take: JSON's scalars, and how they are read from what users write."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence, Set

import numpy as np

from optimizers.errors import SearchSpaceError

Scalar = bool | int | float | str | None
"""What a parameter's value may be: JSON's scalars."""

When = Mapping[str, Scalar | Sequence[Scalar]]
"""A condition: for each parent the value, or the values, with which a parameter is active."""


def plain(value: object) -> object:
    """A numpy scalar as the Python one it stands for; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def same(a: object, b: object) -> bool:
    """Whether two scalars are the same value: ``1`` and ``1.0`` are, ``1`` and ``True`` are not."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def read_scalar(value: object) -> Scalar:
    """``value`` as a plain Python scalar.

    Raises:
        SearchSpaceError: It is not one that JSON has.
    """
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SearchSpaceError(f"{value!r} has no JSON form; use a finite number, or None")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # the exact types were just compared
    raise SearchSpaceError(
        f"a value must be a bool, int, float, str or None, got {value!r}; "
        "give it a name and look it up in train_fn: TABLE[name]"
    )


def read_values(values: object, kind: str) -> tuple[Scalar, ...]:
    """The values of a ``kind`` of domain: at least one, no two the same.

    Raises:
        SearchSpaceError: They are not.
    """
    if isinstance(values, (str, bytes, Mapping, Set)) or not hasattr(values, "__iter__"):
        raise SearchSpaceError(f"{kind} takes its values in a list, got {values!r}; use {kind}([...])")
    scalars = tuple(map(read_scalar, values))
    if not scalars:
        raise SearchSpaceError(f"{kind} has no values; give at least one")
    seen: set[tuple[bool, Scalar]] = set()
    for scalar in scalars:
        key = (isinstance(scalar, bool), scalar)
        if key in seen:
            raise SearchSpaceError(f"{kind} has the value {scalar!r} twice; leave one out")
        seen.add(key)
    return scalars


def read_when(when: When | None) -> dict[str, tuple[Scalar, ...]] | None:
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
