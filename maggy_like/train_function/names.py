"""What a function is called."""

from __future__ import annotations

from functools import partial


def name_of(function: object) -> str:
    """A function's name for messages."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", None) or type(function).__name__)
