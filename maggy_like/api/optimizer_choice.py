"""Which optimizer a search gets, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from maggy_like.errors import ConfigError, OptimizerError
from maggy_like.processes.pickles import dumps
from maggy_like.train_function.code import name_of, uses_checkpoints
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import Direction
from optimizers.registry import make_optimizer
from optimizers.samplers.non_adaptive import n_configurations
from optimizers.schedulers.stopping import StoppingRule, Threshold
from optimizers.space.search_space import SearchSpace


def build_optimizer(optimizer: Any, train_fn: Callable[..., Any]) -> Optimizer:
    """The optimizer that was asked for, in the form that suits ``train_fn``.

    Raises:
        OptimizerError: There is none of that name, or ``train_fn`` lacks the checkpoints that it needs.
    """
    saves = uses_checkpoints(train_fn)
    try:
        made = make_optimizer(optimizer).suited_to(checkpoints=saves)
    except TypeError as error:
        raise OptimizerError(f"optimizer={optimizer!r} cannot be made: {error}") from error
    if made.needs_checkpoints and not saves:
        raise OptimizerError(
            f"optimizer={optimizer!r} runs trials on from saved states, and {name_of(train_fn)} saves or restores "
            "none; call reporter.restore() and reporter.checkpoint(state) in it, or use optimizer='asha'"
        )
    return made


def check_thresholds(optimizer: Optimizer, directions: Sequence[Direction | None]) -> None:
    """Refuse a :class:`~optimizers.Threshold` that would stop the good trials, not the poor ones.

    A direction that nobody has said yet, and no name, is None and passes.
    """
    inner = optimizer
    while isinstance(inner, StoppingRule):
        if isinstance(inner, Threshold) and directions[0] not in (None, inner.direction):
            raise ConfigError(
                f"Threshold(direction={inner.direction!r}) contradicts the search, which has "
                f"direction={directions[0]!r}: the rule would stop the good trials; give both the same direction"
            )
        inner = inner.optimizer


def check_constraints(space: SearchSpace) -> None:
    """See to it that the space can be sent to the optimizer's process, constraints and all."""
    try:
        dumps(space)
    except Exception as error:
        raise ConfigError(
            f"a constraint of the search space cannot be sent to the optimizer's process ({error}); "
            "let it use the configuration and plain values alone"
        ) from error


def count_configurations(optimizer: Optimizer, problem: Problem) -> tuple[int | None, str]:
    """How many configurations there are, and a hint, where a search would go on when each of them was tried."""
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
    """A warning where the schedule grants ``max_budget`` to less than one of so few trials.

    Args:
        name: What the optimizer is called, for people.
        optimizer: The optimizer.
        problem: What it searches.
    """
    meant = optimizer.full_trainings(problem)
    if problem.n_trials is None or meant >= 1.0:
        return ""
    needed = math.ceil(problem.n_trials / meant - 1e-9)  # not one more for a rounding error
    return (
        f"n_trials={problem.n_trials} is few for {name} and max_budget={problem.max_budget}: hardly "
        f"any trial but the best so far will be trained for all {problem.max_budget} steps; give n_trials={needed} or "
        "more, or a larger min_budget"
    )
