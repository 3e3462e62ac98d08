"""Constraints between parameters: predicates of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from optimizers.errors import SearchSpaceError
from optimizers.space.config import Config

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
        remedy = "; a parameter that is not active is left out, so use config.get(name)"
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} raised {error!r} for {dict(config)!r}"
            f"{remedy if isinstance(error, KeyError) else ''}"
        ) from error
    if not isinstance(answer, bool | np.bool_):
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} must return True or False, got {answer!r} for {dict(config)!r}"
        )
    return bool(answer)
