"""Pickles for other processes: functions and classes of a script or notebook by value, each with its own file."""

from __future__ import annotations

import io
import types
from typing import Any

import cloudpickle

__all__ = ["Pickler", "dumps"]


def dumps(value: Any) -> bytes:
    """A value as bytes, which ``pickle.loads`` reads."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, with its file: 3.1.3 writes ``<dynamic-code>``, by which no source is found."""
    kind, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    at = next(at for at, argument in enumerate(arguments) if isinstance(argument, str))  # of the texts, it comes first
    return kind, (*arguments[:at], code.co_filename, *arguments[at + 1 :])


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles functions and classes of a script or notebook by value."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: _reduce_code})
