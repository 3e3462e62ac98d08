"""The confirmation of the best configurations after a search: its options, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maggy_like.argument_checks import whole
from maggy_like.errors import ConfigError
from optimizers.checks import explains_init, short

LEAST_REPEATS = 2
"""Without two repeats nothing is known about the noise."""


@explains_init
@dataclass(frozen=True)
class Confirmation:
    """Train the best configurations of a search again, with other seeds, to find out which one is the best.

    The best value of a noisy search is biased upwards. So the best configurations are trained again with seeds 1000,
    1001 and so on, the same for all of them, on the workers of the search. Each gets two repeats. Then a configuration
    that would hardly win any more gets no others, and the winner gets all. ``result.confirmed`` has the comparison.

    The training function must take ``seed``, with a default for the search, and use it for everything random.

    Args:
        top: Number of configurations that are trained again. Default 5.
        repeats: Maximum number of trainings of each, at least 2. Default 5.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, confirm=Confirmation(top=3, repeats=10))
        >>> result.confirmed.config
    """

    top: int = 5
    repeats: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", whole("top", self.top, least=1))
        object.__setattr__(self, "repeats", whole("repeats", self.repeats, least=LEAST_REPEATS))


def read_confirmation(given: Any) -> Confirmation | None:
    """Read the argument ``confirm``.

    Raises:
        ConfigError: It is neither True, False nor a :class:`Confirmation`.
    """
    if given is False or given is None:
        return None
    if given is True:
        return Confirmation()
    if not isinstance(given, Confirmation):
        remedy = "Confirmation()" if given is Confirmation else "Confirmation(top=5, repeats=5)"
        raise ConfigError(f"confirm must be True, False or a Confirmation, got {short(given)}; use {remedy}")
    return given
