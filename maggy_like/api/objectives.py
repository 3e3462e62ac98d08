"""What is optimised: names, directions and the value at which a search is over."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from maggy_like.argument_checks import one_of
from maggy_like.errors import ConfigError
from optimizers.checks import short
from optimizers.core.direction import SPELLINGS, Direction, contradiction, direction_hint, direction_of
from optimizers.core.objectives import Directions


def check_objectives(
    metric: str | Sequence[str] | None, direction: Directions
) -> tuple[tuple[str, ...], tuple[Direction | None, ...]]:
    """Check the objectives' names and directions.

    A search of one objective may leave its name out: then there are no names, and the direction is None until the first
    report names it.
    """
    several = not (metric is None or isinstance(metric, str))
    if several and (isinstance(metric, Mapping) or not isinstance(metric, Sequence)):
        raise ConfigError(f"metric must be a name or a list of names, got {metric!r}; directions go into direction=")
    metrics = () if metric is None else (metric,) if isinstance(metric, str) else tuple(metric)
    if (several and not metrics) or any(not isinstance(name, str) or not name for name in metrics):
        raise ConfigError(f"metric must be a name or a list of names, got {metric!r}")
    if twice := [name for name, count in Counter(metrics).items() if count > 1]:
        raise ConfigError(f"metric={list(metrics)!r} names {twice[0]!r} twice; name each objective once")
    if direction is None:
        directions: Sequence[str | None] = (None,) * max(1, len(metrics))
    else:
        directions = (direction,) if isinstance(direction, str) else direction
        if not isinstance(directions, Sequence) or isinstance(direction, str) == several:
            raise ConfigError(
                f"direction={direction!r} does not fit metric={metric!r}; give one name and one direction, or a list "
                "of names and a list of as many directions"
            )
    if len(directions) != max(1, len(metrics)):
        raise ConfigError(
            f"metric={list(metrics)!r} has {len(metrics)} names and direction={list(directions)!r} has "
            f"{len(directions)}; give a direction for each"
        )
    read = [None if said is None else SPELLINGS[one_of("direction", said, tuple(SPELLINGS))] for said in directions]
    if not metrics:
        return metrics, tuple(read)
    for name, said in zip(metrics, read, strict=True):
        if said is None and (message := contradiction(name)):
            raise ConfigError(message)
    return metrics, tuple(said or direction_of(name) or "max" for name, said in zip(metrics, read, strict=True))


def direction_hints(
    metrics: Sequence[str], directions: Sequence[Direction | None], direction: Directions
) -> Iterator[str]:
    """Hints about the directions of objectives whose names are known before the search."""
    said = [None] * len(metrics) if direction is None else [direction] if isinstance(direction, str) else direction
    for name, way, given in zip(metrics, directions, said, strict=False):
        yield direction_hint(name, way or "max", given=given is not None)


def check_target(target: Any, metrics: Sequence[str]) -> float | None:
    """Check the value of the objective at which the search ends."""
    if target is None:
        return None
    number = math.nan
    if not isinstance(target, bool) and isinstance(target, Real):
        with contextlib.suppress(OverflowError):
            number = float(target)
    if not math.isfinite(number):
        raise ConfigError(f"target must be a finite number, got {short(target)}")
    if len(metrics) > 1:
        raise ConfigError(f"target={target!r} needs one objective, and metric={list(metrics)!r} has more; leave it out")
    return number
