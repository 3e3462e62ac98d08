"""Checks of the arguments of a :class:`~optimizers.core.study.Study` that is made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizers.checks.options import integer, short
from optimizers.core.base import Observation, Optimizer, Problem
from optimizers.core.objectives import Objectives
from optimizers.errors import SearchSpaceError, UserError
from optimizers.space.search_space import SearchSpace


def checked_problem(
    space: SearchSpace | Mapping[str, Any],
    optimizer: Optimizer,
    objectives: Objectives,
    *,
    seed: int,
    max_budget: int,
    n_trials: int | None,
    points: Sequence[Mapping[str, Any]],
    earlier: Sequence[Sequence[Observation]],
    is_timed: bool,
) -> Problem:
    """What ``optimizer`` is told of the search, once all of it is seen to be of the right kind.

    Raises:
        OptimizerError: The optimizer cannot serve this problem.
        UserError: An argument is of another type, or too small; the message names it.
    """
    if space is None:
        raise SearchSpaceError("space maps names to domains, got None; use a dict such as {'x': Float(0, 1)}")
    given: object = optimizer
    if not isinstance(given, Optimizer):
        remedy = "ASHA() or make_optimizer('asha')"
        if isinstance(given, str):
            remedy = f"make_optimizer({short(given)})"
        elif isinstance(given, type) and issubclass(given, Optimizer):
            remedy = f"{given.__name__}()"
        raise UserError(f"optimizer must be an Optimizer, got {short(given)}; use {remedy}")
    if not _is_list(points) or not all(isinstance(point, Mapping) for point in points):
        raise UserError(f"points must be a list of configurations as dicts, got {short(points)}; use [{{'x': 0.5}}]")
    if not _is_list(earlier) or not all(
        _is_list(search) and all(isinstance(seen, Observation) for seen in search) for search in earlier
    ):
        raise UserError(
            f"earlier must be a list of lists of Observations, one for each search, got {short(earlier)}; use "
            "[study.history.observations]"
        )
    if n_trials and len(points) > integer("n_trials", n_trials, least=0, error=UserError):
        raise UserError(
            f"n_trials must be at least {len(points)} to try all points, got {n_trials}; use n_trials={len(points)}, "
            "or give fewer points"
        )
    if not isinstance(is_timed, bool):
        raise UserError(f"is_timed must be True or False, got {short(is_timed)}")
    problem = Problem(
        space if isinstance(space, SearchSpace) else SearchSpace(space),
        integer("seed", seed, least=0, most=None, error=UserError),
        integer("max_budget", max_budget, least=1, error=UserError),
        None if n_trials is None else integer("n_trials", n_trials, least=0, error=UserError),
        tuple(map(tuple, earlier)),
        n_objectives=len(objectives),
        is_timed=is_timed,
    )
    optimizer.check(problem)
    return problem


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
