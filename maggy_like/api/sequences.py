"""Arguments that are lists, checked before anything goes through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from maggy_like.errors import ConfigError, SearchSpaceError
from maggy_like.storage.journal import Earlier
from optimizers.core.base import Problem
from optimizers.core.initial_points import initial_points
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace

T = TypeVar("T")


def listed(name: str, value: Sequence[T], of: str) -> Sequence[T]:
    """``value``, which must be a list.

    Args:
        name: The argument's.
        of: What it is a list of.

    Raises:
        ConfigError: It is a single one, or nothing of the kind.

    Example:
        >>> listed("callbacks", [print], "functions of one event")
        [<built-in function print>]
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        shown: Any = value
        mend = f"leave it out, or use {name}=[...]" if value is None else f"use {name}=[{_short(shown)}]"
        raise ConfigError(f"{name} takes a list of {of}, got {_short(shown)}; {mend}")
    return value


def check_points(points: Sequence[Mapping[str, Any]], space: SearchSpace, earlier: Earlier) -> tuple[Config, ...]:
    """The configurations to try first."""
    for point in listed("points_to_evaluate", points, "configurations"):
        if not isinstance(point, Mapping):
            raise ConfigError(f"points_to_evaluate takes configurations as dicts, got {point!r} among them")
    try:
        return initial_points(Problem(space, earlier=earlier), points)
    except SearchSpaceError as error:
        raise SearchSpaceError(f"points_to_evaluate: {error}") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else "..."
