"""The arguments of ``lagom``, checked before anything starts."""

from __future__ import annotations

import math
import operator
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from maggy_like.errors import ConfigError, OptimizerError
from maggy_like.inspection import uses_checkpoints
from maggy_like.worker.task import Isolation
from optimizers.asha import ASHA, rung_levels
from optimizers.base import Optimizer, Problem
from optimizers.grid import Grid
from optimizers.names import did_you_mean
from optimizers.registry import make_optimizer
from optimizers.space import SearchSpace
from optimizers.study import Direction
from optimizers.trial import Config

DEFAULT_TRIALS = 50
"""Configurations to try when neither a number nor a time limit is given."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Settings:
    """One search, checked.

    Attributes:
        hint: Something the user should know before it starts, or an empty text.
    """

    space: SearchSpace
    optimizer: Optimizer
    optimizer_name: str
    metric: str | None
    direction: Direction
    n_trials: int | None
    timeout: float | None
    max_budget: int
    workers: int | None
    seed: int
    name: str
    directory: Path
    store: str
    resume: bool
    isolation: Isolation
    max_attempts: int
    trial_timeout: float | None
    points: tuple[Config, ...]
    hint: str


def check_settings(
    train_fn: Callable[..., Any],
    *,
    space: SearchSpace,
    optimizer: Any,
    options: Mapping[str, Any],
    metric: str | None,
    direction: str,
    n_trials: int | None,
    timeout: float | None,
    max_budget: int,
    workers: int | None,
    seed: int,
    name: str | None,
    directory: str | Path,
    store: str | None,
    resume: bool,
    isolation: str,
    max_attempts: int,
    trial_timeout: float | None,
    points_to_evaluate: Sequence[Mapping[str, Any]],
) -> Settings:
    """Check each argument of ``lagom`` and fill in what was not given.

    Raises:
        UserError: An argument is wrong; the message names it and the mend.
    """
    n_trials = None if n_trials is None else whole("n_trials", n_trials, least=1)
    timeout = None if timeout is None else seconds("timeout", timeout)
    max_budget = whole("max_budget", max_budget, least=1)
    seed = whole("seed", seed, least=0)
    made = build_optimizer(optimizer, options, train_fn)
    if n_trials is None:
        n_trials = made.size(space) if isinstance(made, Grid) else None if timeout else DEFAULT_TRIALS
    problem = Problem(space, seed, max_budget, n_trials)
    made.validate(problem)
    if resume and name is None:
        raise ConfigError("resume=True needs the name of the run; pass name='...'")
    name = check_name(name) if name is not None else default_name(train_fn)
    folder = Path(directory).expanduser().resolve() / name
    return Settings(
        space=space,
        optimizer=made,
        optimizer_name=optimizer if isinstance(optimizer, str) else type(made).__name__,
        metric=metric,
        direction=cast(Direction, one_of("direction", direction, ("max", "min"))),
        n_trials=n_trials,
        timeout=timeout,
        max_budget=max_budget,
        workers=None if workers is None else whole("workers", workers, least=1),
        seed=seed,
        name=name,
        directory=folder,
        store=store if store is not None else (folder / "checkpoints").as_uri(),
        resume=resume,
        isolation=cast(Isolation, one_of("isolation", isolation, get_args(Isolation)[:2])),
        max_attempts=whole("max_attempts", max_attempts, least=1),
        trial_timeout=None if trial_timeout is None else seconds("trial_timeout", trial_timeout),
        points=tuple(space.validate(dict(point)) for point in points_to_evaluate),
        hint=reach_hint(made, problem),
    )


def build_optimizer(optimizer: Any, options: Mapping[str, Any], train_fn: Callable[..., Any]) -> Optimizer:
    """The optimizer that was asked for; ASHA by name takes the form that suits ``train_fn``."""
    given = {key: value for key, value in options.items() if value is not None}
    if optimizer == "asha" and "mode" not in given:
        given["mode"] = "promotion" if uses_checkpoints(train_fn) else "stopping"
    try:
        return make_optimizer(optimizer, **given)
    except TypeError as error:
        raise OptimizerError(f"optimizer={optimizer!r} cannot be made: {error}") from error


def reach_hint(optimizer: Optimizer, problem: Problem) -> str:
    """A warning where so few trials are asked for that ASHA cannot reach the top rung."""
    if not isinstance(optimizer, ASHA) or problem.n_trials is None:
        return ""
    levels = rung_levels(problem.max_budget, optimizer.min_budget, optimizer.eta)
    needed = optimizer.eta ** (len(levels) - 1)
    if problem.n_trials >= needed:
        return ""
    rungs = ", ".join(map(str, levels))
    return (
        f"with n_trials={problem.n_trials}, eta={optimizer.eta} and rungs at {rungs}, hardly any trial will "
        f"reach max_budget={problem.max_budget}; ASHA wants n_trials={needed} or more here, or a larger "
        "min_budget"
    )


def whole(name: str, value: Any, *, least: int) -> int:
    """A whole number of at least ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def seconds(name: str, value: Any) -> float:
    """A positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}; leave it out for no limit")
    return float(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """One of some words."""
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}{near}")
    return str(value)


def check_name(name: str) -> str:
    """A run's name, fit for a folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name={name!r} cannot name a folder; use letters, digits, '.', '_' and '-', and begin with one of "
            "the first two"
        )
    return name


def default_name(train_fn: Callable[..., Any]) -> str:
    """A new run's name: the function's, the time, and four characters that make it its own."""
    function = re.sub(r"[^A-Za-z0-9._-]", "", getattr(train_fn, "__name__", "")).lstrip("._-") or "run"
    return f"{function}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
