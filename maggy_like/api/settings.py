"""The arguments of ``lagom``, checked before anything starts."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, cast, get_args

import cloudpickle

from maggy_like.api.sequences import check_points
from maggy_like.api.warm_start import gather, recorded
from maggy_like.driver.failure_policy import FailurePolicy
from maggy_like.errors import ConfigError, OptimizerError
from maggy_like.protocol.task import Isolation
from maggy_like.results.result import Result
from maggy_like.storage.folders import Folder, within
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import (
    RunPaths,
    check_directory,
    check_journal,
    check_name,
    check_store,
    default_name,
)
from maggy_like.train_function.names import name_of
from maggy_like.train_function.reporter_use import uses_checkpoints
from optimizers.checks.near_names import did_you_mean
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import SPELLINGS, Direction, direction_hint, direction_of
from optimizers.core.objectives import Directions
from optimizers.core.ranking import WORTHS, Worth
from optimizers.registry import make_optimizer
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace

DEFAULT_TRIALS = 50
"""Configurations to try when neither a number nor a time limit is given."""

LEAST_SILENCE = 1.0
"""Seconds below which a worker cannot tell a trial that is silent from one whose reports are on their way."""


@dataclass(frozen=True)
class Settings:
    """One search, checked.

    Attributes:
        metrics: Names of the objectives; empty if the only one's is not given.
        directions: One for each objective; None where the only one's name is not known yet.
        value: What a trial is worth (see :class:`~optimizers.core.ranking.Ranking`).
        earlier: What earlier runs observed.
        points: Configurations to try first.
        workers_per_trial: How many workers run a trial together.
        target: Value of the objective with which the search is over.
        train_steps: Steps of the training that follows; 0 for none.
        train_config: With which configuration, if not the best.
        variants: Those of an ablation, described; trials are compared in groups then, and none of them is the best.
        min_workers: How many workers will do; None for all.
        max_workers: How many there may be where ``workers`` is None; None for what the engine has.
        keep_checkpoints: How many of an attempt's newest states to keep.
        directory: The run's folder: a path, or a URL where one was given.
        journal: The folder of the run's journal, a path or a URL.
        hints: Lines that the user should know before it starts.
        failures: When failures end the whole search.
    """

    space: SearchSpace
    optimizer: Optimizer
    optimizer_name: str
    metrics: tuple[str, ...]
    directions: tuple[Direction | None, ...]
    value: Worth
    n_trials: int | None
    timeout: float | None
    target: float | None
    max_budget: int
    workers: int | None
    seed: int
    name: str
    directory: Folder
    journal: str
    store: str
    resume: bool
    isolation: Isolation
    max_attempts: int
    trial_timeout: float | None
    report_timeout: float | None
    earlier: Earlier
    points: tuple[Config, ...]
    workers_per_trial: int
    train_steps: int
    min_workers: int | None
    max_workers: int | None
    keep_checkpoints: int
    hints: tuple[str, ...]
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    train_config: Config | None = None
    variants: tuple[str, ...] = ()

    @property
    def is_ablation(self) -> bool:
        """Whether it is an ablation."""
        return bool(self.variants)

    @property
    def paths(self) -> RunPaths:
        """Where the run's files are."""
        return RunPaths(self.directory, self.journal, self.store)

    @property
    def others(self) -> tuple[tuple[Direction, str], ...]:
        """Direction and name of all objectives but the first."""
        return tuple((way or "max", name) for way, name in zip(self.directions[1:], self.metrics[1:], strict=True))


def check_settings(
    train_fn: Callable[..., Any],
    *,
    space: SearchSpace,
    optimizer: Any,
    options: Mapping[str, Any],
    metric: str | Sequence[str] | None,
    direction: Directions,
    value: str,
    n_trials: int | None,
    timeout: float | None,
    target: float | None,
    max_budget: int,
    workers: int | None,
    seed: int,
    name: str | None,
    directory: str | Path,
    journal: str | Path | None,
    store: str | Path | None,
    resume: bool,
    isolation: str,
    max_attempts: int,
    trial_timeout: float | None,
    report_timeout: float | None,
    points_to_evaluate: Sequence[Mapping[str, Any]],
    warm_start: Sequence[Result | str | Path],
    workers_per_trial: int,
    train_best: bool | int,
    min_workers: int | None,
    max_workers: int | None,
    keep_checkpoints: int,
) -> Settings:
    """Check each argument of ``lagom`` and fill in what was not given.

    Raises:
        UserError: An argument is wrong; the message names it and the mend.
        JournalError: The journal of an earlier run is damaged.
    """
    n_trials = None if n_trials is None else whole("n_trials", n_trials, least=1)
    timeout = None if timeout is None else seconds("timeout", timeout)
    max_budget = whole("max_budget", max_budget, least=1)
    seed = whole("seed", seed, least=0)
    made = build_optimizer(optimizer, options, train_fn)
    if made.needs_checkpoints and not uses_checkpoints(train_fn):
        raise OptimizerError(
            f"optimizer={optimizer!r} runs trials on from saved states, and {name_of(train_fn)} saves or restores "
            "none; call reporter.restore() and reporter.checkpoint(state) in it, or use optimizer='asha'"
        )
    check_constraints(space)
    metrics, directions = check_objectives(metric, direction)
    worth = cast(Worth, one_of("value", value, WORTHS))
    if resume and name is None:
        raise ConfigError("resume=True needs the name of the run; pass name='...'")
    name = check_name(name) if name is not None else default_name(train_fn)
    folder = within(check_directory(directory), name)
    where = check_journal(journal, folder, name)
    if resume:
        earlier, known = recorded(where, warm_start)
        directions, told = known if direction is None and len(known) == len(directions) else directions, ""
    else:
        earlier, told, directions = gather(warm_start, space, metrics, directions)
    points = check_points(points_to_evaluate, space, earlier)
    if n_trials is None:
        size = made.size(space)
        n_trials = size + len(points) if size else None if timeout else DEFAULT_TRIALS
    problem = Problem(space, seed, max_budget, n_trials, earlier, n_objectives=len(directions))
    made.check(problem)
    return Settings(
        space=space,
        optimizer=made,
        optimizer_name=optimizer if isinstance(optimizer, str) else type(made).__name__,
        metrics=metrics,
        directions=directions,
        value=worth if len(directions) == 1 else "last",
        n_trials=n_trials,
        timeout=timeout,
        target=check_target(target, metrics),
        max_budget=max_budget,
        workers=None if workers is None else whole("workers", workers, least=1),
        seed=seed,
        name=name,
        directory=folder,
        journal=where,
        store=check_store(store, folder, name),
        resume=resume,
        isolation=cast(Isolation, one_of("isolation", isolation, get_args(Isolation)[:2])),
        max_attempts=whole("max_attempts", max_attempts, least=1),
        trial_timeout=None if trial_timeout is None else seconds("trial_timeout", trial_timeout),
        report_timeout=None
        if report_timeout is None
        else seconds("report_timeout", report_timeout, least=LEAST_SILENCE),
        earlier=earlier,
        points=points,
        workers_per_trial=check_width(workers_per_trial, workers),
        train_steps=check_training(train_best, max_budget, directions),
        min_workers=check_least(min_workers, workers, workers_per_trial),
        max_workers=check_most(max_workers, workers, workers_per_trial, min_workers),
        keep_checkpoints=whole("keep_checkpoints", keep_checkpoints, least=1),
        hints=tuple(filter(None, (reach_hint(made, problem), *direction_hints(metrics, directions, direction), told))),
    )


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
    return metrics, tuple(said or direction_of(name) or "max" for name, said in zip(metrics, read, strict=True))


def direction_hints(
    metrics: Sequence[str], directions: Sequence[Direction | None], direction: Directions
) -> Iterator[str]:
    """Hints about the directions of objectives whose names are known before the search."""
    said = [None] * len(metrics) if direction is None else [direction] if isinstance(direction, str) else direction
    for name, way, given in zip(metrics, directions, said, strict=False):
        yield direction_hint(name, way or "max", given=given is not None)


def check_width(workers_per_trial: int, workers: int | None) -> int:
    """How many workers run a trial together."""
    width = whole("workers_per_trial", workers_per_trial, least=1)
    if workers is not None and width > workers:
        raise ConfigError(f"workers_per_trial={width} is more than workers={workers}; pass workers={width} or more")
    return width


def check_least(min_workers: int | None, workers: int | None, workers_per_trial: int) -> int | None:
    """How many workers will do."""
    if min_workers is None:
        return None
    least = whole("min_workers", min_workers, least=1)
    if workers is not None and least > workers:
        raise ConfigError(f"min_workers={least} is more than workers={workers}; pass {workers} or fewer")
    if least < workers_per_trial:
        raise ConfigError(
            f"min_workers={least} is less than workers_per_trial={workers_per_trial}, so no trial could run; "
            f"pass {workers_per_trial} or more"
        )
    return least


def check_most(
    max_workers: int | None, workers: int | None, workers_per_trial: int, min_workers: int | None
) -> int | None:
    """How many workers there may be."""
    if max_workers is None:
        return None
    most = whole("max_workers", max_workers, least=1)
    if workers is not None:
        raise ConfigError(
            f"workers={workers} says how many there are, and max_workers={most} how many there may be; leave one out"
        )
    for name, needed in (("workers_per_trial", workers_per_trial), ("min_workers", min_workers or 1)):
        if needed > most:
            raise ConfigError(f"{name}={needed} is more than max_workers={most}; pass max_workers={needed} or more")
    return most


def check_training(train_best: bool | int, max_budget: int, directions: Sequence[Direction | None]) -> int:
    """Steps of the training that follows; 0 for none."""
    if train_best is False:
        return 0
    if len(directions) > 1:
        raise ConfigError(
            f"train_best={train_best!r} needs a best configuration, and a search of {len(directions)} objectives has "
            "a Pareto set; leave it out, and pass the one you choose to maggy_like.run"
        )
    return max_budget if train_best is True else whole("train_best", train_best, least=1)


def check_target(target: Any, metrics: Sequence[str]) -> float | None:
    """Check the value of the objective at which the search ends."""
    if target is None:
        return None
    if isinstance(target, bool) or not isinstance(target, Real) or not math.isfinite(target):
        raise ConfigError(f"target must be a finite number, got {target!r}")
    if len(metrics) > 1:
        raise ConfigError(f"target={target!r} needs one objective, and metric={list(metrics)!r} has more; leave it out")
    return float(target)


def check_constraints(space: SearchSpace) -> None:
    """See to it that the space can be sent to the optimizer's process, constraints and all."""
    try:
        cloudpickle.dumps(space)
    except Exception as error:
        raise ConfigError(
            f"a constraint of the search space cannot be sent to the optimizer's process ({error}); "
            "let it use the configuration and plain values alone"
        ) from error


def build_optimizer(optimizer: Any, options: Mapping[str, Any], train_fn: Callable[..., Any]) -> Optimizer:
    """The optimizer that was asked for; ASHA by name takes the form that suits ``train_fn``."""
    given = {key: value for key, value in options.items() if value is not None}
    if given.get("mode") in ("min", "max", "minimize", "maximize"):
        raise ConfigError(f"mode={given['mode']!r} is a direction; use direction={given['mode'][:3]!r}")
    if optimizer in ("asha", "mobster", "hyperband", "bohb") and "mode" not in given:
        given["mode"] = "promotion" if uses_checkpoints(train_fn) else "stopping"
    try:
        return make_optimizer(optimizer, **given)
    except TypeError as error:
        raise OptimizerError(f"optimizer={optimizer!r} cannot be made: {error}") from error


def reach_hint(optimizer: Optimizer, problem: Problem) -> str:
    """A warning where the schedule grants ``max_budget`` to less than one of so few trials."""
    meant = optimizer.full_trainings(problem)
    if problem.n_trials is None or meant >= 1.0:
        return ""
    needed = math.ceil(problem.n_trials / meant - 1e-9)  # not one more for a rounding error
    return (
        f"n_trials={problem.n_trials} is few for {optimizer.describe()} and max_budget={problem.max_budget}: hardly "
        f"any trial but the best so far will be trained for all {problem.max_budget} steps; give n_trials={needed} or "
        "more, or a larger min_budget"
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


def seconds(name: str, value: Any, *, least: float = 0.0) -> float:
    """A positive, finite number of seconds, and at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf and value >= least):
        kind = f"number of seconds of at least {least:g}" if least else "positive number of seconds"
        raise ConfigError(f"{name} must be a {kind}, got {value!r}; leave it out for no limit")
    return float(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """One of some words."""
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}{near}")
    return str(value)
