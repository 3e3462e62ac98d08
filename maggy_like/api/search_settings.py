"""What is searched, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from maggy_like.api.objectives import check_objectives, direction_hints
from maggy_like.api.optimizer_choice import (
    build_optimizer,
    check_constraints,
    check_thresholds,
    count_configurations,
    reach_hint,
)
from maggy_like.api.warm_start import gather, recorded
from maggy_like.argument_checks import listed, one_of, whole
from maggy_like.driver.settings import FileSettings, SearchSettings
from maggy_like.errors import ConfigError, SearchSpaceError
from maggy_like.results.result import Result
from maggy_like.storage.journal import Earlier
from optimizers.core.base import Problem
from optimizers.core.objectives import Directions
from optimizers.core.study import initial_points
from optimizers.core.study_state import VALUE_RULES, ValueRule
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

DEFAULT_BUDGET = 27
"""Steps of a full training if nobody says how many."""

DEFAULT_TRIALS = 50
"""Configurations to try when neither a number nor a time limit is given."""


def check_search(
    train_fn: Callable[..., Any],
    space: SearchSpace,
    files: FileSettings,
    *,
    optimizer: Any,
    metric: str | Sequence[str] | None,
    direction: Directions,
    value: str = "best",
    n_trials: int | None = None,
    is_timed: bool = False,
    max_budget: int | None,
    seed: int,
    points_to_evaluate: Sequence[Mapping[str, Any]] = (),
    warm_start: Sequence[Result | str | Path] = (),
) -> tuple[SearchSettings, tuple[str, ...]]:
    """Check what is to be searched, and fill in what was not given.

    Args:
        files: Where the run is kept: one that is resumed knows its directions and what it was started with.
        is_timed: Whether a time limit ends the search, so that it needs no number of trials.

    Returns:
        The settings, and what the user should know before it starts.

    Raises:
        UserError: An argument is wrong; the message names it and the remedy.
        JournalError: The journal of an earlier run is damaged.
    """
    n_trials = None if n_trials is None else whole("n_trials", n_trials, least=1)
    open_ended = max_budget is None
    max_budget = DEFAULT_BUDGET if max_budget is None else whole("max_budget", max_budget, least=1)
    seed = whole("seed", seed, least=0, most=None)
    made = build_optimizer(optimizer, train_fn)
    check_constraints(space)
    metrics, directions = check_objectives(metric, direction)
    worth = cast(ValueRule, one_of("value", value, VALUE_RULES))
    if files.resume:
        earlier, known = recorded(files.paths.journal, warm_start, space)
        directions, hint = known if direction is None and len(known) == len(directions) else directions, ""
    else:
        earlier, hint, directions = gather(warm_start, space, metrics, directions)
    guessed = direction is None and (bool(metrics) or directions == (None,))
    check_thresholds(made, directions)
    points = _check_points(points_to_evaluate, space, earlier)
    if n_trials is not None and n_trials < (given := len(points_to_evaluate)):
        raise ConfigError(
            f"n_trials must be at least {given} to try all points_to_evaluate, got {n_trials}; use n_trials={given}, "
            "or give fewer points"
        )
    if n_trials is None:
        size = made.size(space)
        n_trials = size + len(points) if size else None if is_timed else DEFAULT_TRIALS
    settings = SearchSettings(
        space=space,
        optimizer=made,
        optimizer_name=optimizer if isinstance(optimizer, str) else type(made).__name__,
        metrics=metrics,
        directions=directions,
        guessed=guessed,
        value=worth if len(directions) == 1 else "last",
        seed=seed,
        max_budget=max_budget,
        open_ended=open_ended,
        n_trials=n_trials,
        is_timed=n_trials is None,
        points=points,
        earlier=earlier,
    )
    made.check(settings.problem)
    n_configs, count_hint = count_configurations(made, settings.problem)
    hints = (
        *made.remarks(settings.problem),
        count_hint,
        reach_hint(settings.optimizer_name, made, settings.problem),
        *direction_hints(metrics, directions, direction),
        hint,
    )
    return replace(settings, n_configs=n_configs), tuple(filter(None, hints))


def _check_points(points: Sequence[Mapping[str, Any]], space: SearchSpace, earlier: Earlier) -> tuple[Config, ...]:
    """The configurations to try first."""
    for point in listed("points_to_evaluate", points, "configurations"):
        if not isinstance(point, Mapping):
            raise ConfigError(f"points_to_evaluate takes configurations as dicts, got {point!r} among them")
    try:
        return initial_points(Problem(space, earlier=earlier), points)
    except SearchSpaceError as error:
        raise SearchSpaceError(f"points_to_evaluate: {error}") from None
