"""Constraints between parameters: predicates of a configuration, and sequences without what they refuse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from optimizers.errors import SearchSpaceError
from optimizers.space.config import Config

if TYPE_CHECKING:
    from optimizers.space.search_space import SearchSpace

Constraint = Callable[[Config], bool]
"""Whether a configuration, of the active parameters alone, is allowed."""


def name_of(constraint: Constraint) -> str:
    """A constraint's name for messages."""
    return str(getattr(constraint, "__name__", None) or repr(constraint))


def holds(constraint: Constraint, config: Mapping[str, Any]) -> bool:
    """Whether ``constraint`` allows ``config``.

    Raises:
        SearchSpaceError: The predicate raises, or answers with something else than True or False.
    """
    try:
        answer: object = constraint(dict(config))
    except Exception as error:
        mend = "; a parameter that is not active is left out, so use config.get(name)"
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} raised {error!r} for {dict(config)!r}"
            f"{mend if isinstance(error, KeyError) else ''}"
        ) from error
    if not isinstance(answer, bool | np.bool_):
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} must return True or False, got {answer!r} for {dict(config)!r}"
        )
    return bool(answer)


class FilteredSequence:
    """A sequence of configurations without those that a space refuses, each looked at once.

    Args:
        space: Says what is allowed.
        at: The configuration at a place of the whole sequence, from 0; None past its end.
    """

    def __init__(self, space: SearchSpace, at: Callable[[int], Config | None]) -> None:
        self._space = space
        self._at = at
        self._seen = 0
        self._kept: list[Config] = []

    def __len__(self) -> int:
        self.at(sys.maxsize)
        return len(self._kept)

    def at(self, index: int) -> Config | None:
        """The ``index``-th that is allowed; None past the last."""
        while len(self._kept) <= index:
            config = self._at(self._seen)
            if config is None:
                return None
            self._seen += 1
            if self._space.allows(config):
                self._kept.append(config)
        return dict(self._kept[index])
