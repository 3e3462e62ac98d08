"""Checks of the optimizer, the objectives and the other settings of a search."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from maggy_like.argument_checks import listed, one_of
from maggy_like.errors import ConfigError, OptimizerError, SearchSpaceError
from maggy_like.processes.pickles import dumps
from maggy_like.storage.journal import Earlier
from maggy_like.train_function.code import name_of, uses_checkpoints
from optimizers.checks import read_text, short
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import SPELLINGS, Direction, contradiction, direction_hint, direction_of
from optimizers.core.objectives import Directions
from optimizers.core.study import initial_points
from optimizers.registry import make_optimizer
from optimizers.samplers.non_adaptive import n_configurations
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

DEFAULT_BUDGET = 27
"""Steps of a full training if nobody says how many."""

DEFAULT_TRIALS = 50
"""Number of configurations if neither a number nor a time limit is given."""


def check_points(points: Sequence[Mapping[str, Any]], space: SearchSpace, earlier: Earlier) -> tuple[Config, ...]:
    """Check the configurations to try first."""
    for point in listed("points_to_evaluate", points, "configurations"):
        if not isinstance(point, Mapping):
            raise ConfigError(
                f"points_to_evaluate must contain dicts, got {short(point)}; use [{{'lr': 0.1}}], for example"
            )
    try:
        return initial_points(Problem(space, earlier=earlier), points)
    except SearchSpaceError as error:
        raise SearchSpaceError(f"points_to_evaluate: {error}") from None


def check_objectives(
    metric: str | Sequence[str] | None, direction: Directions
) -> tuple[tuple[str, ...], tuple[Direction | None, ...]]:
    """Check the names and directions of the objectives.

    With one objective, the name is optional. Without it there are no names, and the direction is None until the first
    report has the name.
    """
    several = not (metric is None or isinstance(metric, str))
    if several and (isinstance(metric, Mapping) or not isinstance(metric, Sequence)):
        raise ConfigError(
            f"metric must be a name or a list of names, got {short(metric)}; directions go into direction="
        )
    metrics = () if metric is None else (metric,) if isinstance(metric, str) else tuple(metric)
    if (several and not metrics) or any(not isinstance(name, str) or not name for name in metrics):
        raise ConfigError(f"metric must be a name or a list of names, got {short(metric)}")
    if twice := [name for name, count in Counter(metrics).items() if count > 1]:
        raise ConfigError(f"metric={list(metrics)!r} names {twice[0]!r} twice; name each objective once")
    if direction is None:
        directions: Sequence[str | None] = (None,) * max(1, len(metrics))
    else:
        if not isinstance(direction, Sequence):
            raise ConfigError(f"direction must be 'max' or 'min', got {short(direction)}; leave it out, or use 'max'")
        directions = (direction,) if isinstance(direction, str) else direction
        if isinstance(direction, str) == several:
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
    """Return hints about the directions of objectives whose names are known before the search."""
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
        given = read_text(target)
        remedy = f"use {given:g}" if isinstance(given, float) and math.isfinite(given) else "leave it out for none"
        raise ConfigError(f"target must be a finite number, got {short(target)}; {remedy}")
    if len(metrics) > 1:
        raise ConfigError(f"target={target!r} needs one objective, and metric={list(metrics)!r} has more; leave it out")
    return number


def build_optimizer(optimizer: Any, train_fn: Callable[..., Any]) -> Optimizer:
    """Make the optimizer in the form that suits ``train_fn``.

    Raises:
        OptimizerError: There is no such optimizer, or ``train_fn`` lacks the checkpoints that it needs.
    """
    saves = uses_checkpoints(train_fn)
    try:
        made = make_optimizer(optimizer).suited_to(checkpoints=saves)
    except TypeError as error:
        raise OptimizerError(f"optimizer={optimizer!r} cannot be made: {error}") from error
    if made.needs_checkpoints and not saves:
        shown = repr(optimizer) if isinstance(optimizer, str) else type(made).__name__
        raise OptimizerError(
            f"optimizer={shown} resumes trials from saved states, and {name_of(train_fn)} does not save or "
            "restore any; call reporter.restore() and reporter.checkpoint(state) in it, or use optimizer='asha'"
        )
    return made


def check_constraints(space: SearchSpace) -> None:
    """Check that the space with its constraints can be sent to the optimizer's process."""
    try:
        dumps(space)
    except Exception as error:
        raise ConfigError(
            f"a constraint of the search space cannot be sent to the optimizer's process ({error}); "
            "let it use only the configuration and plain values"
        ) from error


def count_configurations(optimizer: Optimizer, problem: Problem) -> tuple[int | None, str]:
    """Return the number of configurations, with a hint if the search would continue once all of them were tried."""
    n_trials = problem.n_trials
    count = None if optimizer.needs_checkpoints else n_configurations(problem.space, n_trials)
    if count is None:
        return None, ""
    bound = "the search is bounded by time" if n_trials is None else f"n_trials={n_trials} is more"
    return count, (
        f"the search space has {count} configuration{'s' * (count != 1)}, and {bound}: the search ends once each was "
        "tried; add a parameter, such as a seed, to try them repeatedly"
    )


def reach_hint(name: str, optimizer: Optimizer, problem: Problem) -> str:
    """Return a warning if there are so few trials that the schedule grants ``max_budget`` to less than one of them."""
    meant = optimizer.full_trainings(problem)
    if problem.n_trials is None or meant >= 1.0:
        return ""
    needed = math.ceil(problem.n_trials / meant - 1e-9)  # not one more for a rounding error
    return (
        f"n_trials={problem.n_trials} is few for {name} and max_budget={problem.max_budget}: hardly any trial except "
        f"the best so far will be trained for all {problem.max_budget} steps; use n_trials={needed} or more, or a "
        "larger min_budget"
    )
