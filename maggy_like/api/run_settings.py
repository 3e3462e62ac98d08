"""Checks of the arguments of ``lagom``, ``ablate`` and ``run``: files, workers, engine, objectives and optimizer."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from maggy_like.argument_checks import flag, listed, one_of, real, whole
from maggy_like.display import check_progress, make_display
from maggy_like.driver.followers import read_callbacks
from maggy_like.driver.run_spec import DriverSide, RunSpec
from maggy_like.driver.settings import FileSettings, Settings, SizeSettings
from maggy_like.engines.base import Engine
from maggy_like.engines.local import LocalEngine
from maggy_like.errors import ConfigError, EngineError, OptimizerError, SearchSpaceError
from maggy_like.processes.pickles import dumps
from maggy_like.protocol.values import is_encodable, shortened
from maggy_like.storage.file_systems import local_path, modules_for, url_of, within
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import (
    RunPaths,
    check_name,
    check_runs_directory,
    default_name,
    place_for,
    read_store,
    store_url,
)
from maggy_like.train_function.changed_state import state_hints
from maggy_like.train_function.code import code_hash, name_of, place_of, uses_checkpoints
from maggy_like.train_function.pickling import pickle_train_fn, size_hints, sources_of
from maggy_like.train_function.script import Script
from optimizers.checks import did_you_mean, read_text, short
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import SPELLINGS, Direction, contradiction, direction_hint, direction_of
from optimizers.core.objectives import Directions
from optimizers.core.study import initial_points
from optimizers.registry import make_optimizer
from optimizers.samplers.non_adaptive import n_configurations
from optimizers.space import Config
from optimizers.space.domains import Constant, Domain, Float
from optimizers.space.scalars import plain, read_value
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.api.options import RunOptions


def make_spec(
    options: RunOptions,
    settings: Settings,
    preload: Sequence[str],
    *,
    function: Callable[..., Any] | None = None,
    save_returned: Callable[[Any], None] | None = None,
    driver: DriverSide = "client",
) -> RunSpec:
    """Check the display, the callbacks, the engine and the function, and make the specification of a run.

    The workers call ``function``, by default ``train_fn``.
    """
    check_progress(options.progress)
    listeners = read_callbacks(options.callbacks, str(settings.paths.directory))
    engine = choose_engine(options.engine)
    train_fn, isolation = options.train_fn, engine.isolation
    payload = pickle_train_fn(train_fn if function is None else function)
    warnings = (*state_hints(train_fn, isolation), *size_hints(train_fn, payload, isolation))
    return RunSpec(
        settings=replace(settings, warnings=warnings),
        engine=engine,
        payload=payload,
        preload=(*preload, *modules_for(settings.paths.directory)),
        displays=[make_display(options.progress, with_trials=isolation == "none")],
        callbacks=listeners,
        save_returned=save_returned,
        sources=sources_of(train_fn),
        # A script writes where torchrun would have it write. It is the only trial.
        is_shared=isinstance(train_fn, Script) and engine.is_on_this_machine,
        driver=read_driver(driver),
    )


def check_files(options: RunOptions) -> FileSettings:
    """Check where a run is stored, and make a name if none is given."""
    train_fn, name, resume, overwrite = options.train_fn, options.name, options.resume, options.overwrite
    flag("resume", resume, "use resume=True to continue the run called name")
    flag("overwrite", overwrite, "use overwrite=True to delete an earlier run called name")
    if (resume or overwrite) and name is None:
        raise ConfigError(f"{'resume' if resume else 'overwrite'}=True needs the name of the run; pass name='...'")
    if resume and overwrite:
        raise ConfigError(
            "resume=True continues the earlier run and overwrite=True deletes it, so both cannot be True; pass one"
        )
    name = check_name(name) if name is not None else default_name(train_fn)
    directory = place_for(within(check_runs_directory(options.directory), name))
    kept = read_store(options.store)
    store = store_url(kept.url, directory, name)
    if kept.url is not None and (path := local_path(store)) is not None:
        store = url_of(place_for(path))
    paths = RunPaths(directory, store)
    if not is_encodable(paths.recorded_store):
        raise ConfigError(
            "store must be a directory whose path is UTF-8, since the journal records it, got "
            f"{paths.recorded_store!r}; use another, or leave it out to keep the states in directory"
        )
    return FileSettings(name, paths, resume, kept, code_hash(train_fn), overwrite, function=place_of(train_fn))


_ALL = "leave it out for all slots of the engine"


def check_size(
    workers: int | None = None,
    *,
    max_workers: int | None = None,
    workers_per_trial: int = 1,
    min_workers: int | None = None,
) -> SizeSettings:
    """Check the numbers of workers, including ``min_workers`` of the failure policy."""
    together = whole("workers_per_trial", workers_per_trial, least=1)
    size = None if workers is None else whole("workers", workers, least=1, remedy=_ALL)
    most = None if max_workers is None else whole("max_workers", max_workers, least=1, remedy=_ALL)
    if size is not None and together > size:
        raise ConfigError(f"workers_per_trial={together} is more than workers={size}; pass workers={together} or more")
    if min_workers is not None and size is not None and min_workers > size:
        raise ConfigError(f"min_workers={min_workers} is more than workers={size}; pass {size} or fewer")
    if min_workers is not None and min_workers < together:
        raise ConfigError(
            f"min_workers={min_workers} is less than workers_per_trial={together}, so no trial could run; "
            f"pass {together} or more"
        )
    if most is not None and size is not None:
        raise ConfigError(
            f"workers={size} sets the number, and max_workers={most} its limit if workers is not given; leave one out"
        )
    for name, needed in (("workers_per_trial", together), ("min_workers", min_workers or 1)):
        if most is not None and needed > most:
            raise ConfigError(f"{name}={needed} is more than max_workers={most}; pass max_workers={needed} or more")
    return SizeSettings(size, most, together)


ENGINES = ("auto", "local", "spark", "inline")


def choose_engine(engine: str | Engine) -> Engine:
    """Return the given engine, or the one with that name."""
    if isinstance(engine, Engine):
        return engine
    if engine not in ENGINES:
        raise ConfigError(
            f"engine must be one of {', '.join(map(repr, ENGINES))}, or an engine such as SparkEngine(...), "
            f"got {short(engine)}{_meant(engine)}"
        )
    if engine == "inline":
        from maggy_like.engines.inline import InlineEngine

        return InlineEngine()
    if engine == "spark" or (engine == "auto" and "pyspark" in sys.modules):
        from maggy_like.spark.connection import is_in_task
        from maggy_like.spark.engine.engine import SparkEngine
        from maggy_like.spark.session import active_session

        if engine == "spark" or active_session() is not None:
            return SparkEngine()
        if is_in_task():
            raise EngineError(
                "engine='auto' cannot search inside a Spark task: its processes would share the task's single slot "
                "without Spark's knowledge; call it on the Spark driver, or use engine='local' to run it in this task"
            )
    return LocalEngine()


def _meant(engine: object) -> str:
    """Return a hint at what was meant instead of an engine."""
    if isinstance(engine, str) and (master := re.fullmatch(r"local\[(\d+)\]", engine)):
        return f"; use engine='local', workers={master[1]}"
    if isinstance(engine, str):
        return did_you_mean(engine, ENGINES)
    if isinstance(engine, type) and issubclass(engine, Engine):
        return f" (did you mean {engine.__name__}()?)"
    if type(engine).__name__ == "SparkSession":
        return "; pass SparkEngine(session)"
    return ""


def read_driver(driver: str) -> DriverSide:
    """Check the place of the driver."""
    return cast(DriverSide, one_of("driver", driver, get_args(DriverSide)))


def check_config(config: Mapping[str, Any] | None) -> Config:
    """Check the arguments of a function that :func:`~maggy_like.run` runs."""
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config must be a dict of arguments by name, got {short(config)}; use {{'lr': 0.1}}, for example"
        )
    given = dict(config or {})
    for name, value in given.items():
        if isinstance(value, Domain) and not isinstance(value, Constant):
            raise ConfigError(
                f"config[{name!r}] must be one value, got {short(value)}; use lagom(train_fn, searchspace) to search"
            )
        for item in _items(value):
            if item is not None and not isinstance(item, bool | int | float | str):
                raise ConfigError(
                    f"config[{name!r}] must be a number, text, boolean or None, or a tuple or list of them, got "
                    f"{' '.join(shortened(value).split())} of type {type(value).__name__}; use "
                    "functools.partial(train_fn, ...) for other objects"
                )
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigError(
                    f"config[{name!r}] must be finite for the journal, got {value!r}; use a finite number, None or "
                    "functools.partial(train_fn, ...)"
                )
    return {name: read_value(value) for name, value in given.items()}


def _items(value: Any) -> Iterator[Any]:
    """Return the plain values in a value of :func:`~optimizers.space.scalars.read_value`."""
    if type(value) in (tuple, list):
        for inner in value:
            yield from _items(inner)
    else:
        yield plain(value)


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
        given = short(metric)
        raise ConfigError(f"metric must be a name or a list of names, got {given}; directions go into direction=")
    metrics = () if metric is None else (metric,) if isinstance(metric, str) else tuple(metric)
    if (several and not metrics) or any(not isinstance(name, str) or not name for name in metrics):
        raise ConfigError(f"metric must be a name or a list of names, got {short(metric)}")
    if several and direction is None and (ways := [name for name in metrics if name in SPELLINGS]):
        names = [name for name in metrics if name not in ways]
        remedy = f"metric={names[0]!r}, direction={ways[0]!r}" if len(names) == 1 else f"direction={ways!r}"
        raise ConfigError(
            f"metric must be names without directions, got {ways[0]!r} in {list(metrics)!r}; use {remedy}"
        )
    if twice := [name for name, count in Counter(metrics).items() if count > 1]:
        raise ConfigError(f"metric={list(metrics)!r} names {twice[0]!r} twice; name each objective once")
    if direction is None:
        directions: Sequence[str | None] = (None,) * max(1, len(metrics))
    else:
        if not isinstance(direction, Sequence):
            raise ConfigError(
                f"direction must be 'max' or 'min', got {short(direction)}; leave it out, or use "
                + ("'min'" if "min" in repr(direction).lower() else "'max'")
            )
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
    number = real(target)
    if number is None or not math.isfinite(number):
        given = read_text(target)
        remedy = f"use {given:g}" if isinstance(given, float) and math.isfinite(given) else "leave it out for none"
        raise ConfigError(f"target must be a finite number, got {short(target)}; {remedy}")
    if len(metrics) > 1:
        raise ConfigError(f"target={target!r} needs one objective, and metric={list(metrics)!r} has more; leave it out")
    return number


def build_optimizer(optimizer: Any, train_fn: Callable[..., Any]) -> Optimizer:
    """Make the optimizer in the form that suits ``train_fn``."""
    saves = uses_checkpoints(train_fn)
    try:
        made = make_optimizer(optimizer).suited_to(checkpoints=saves)
    except TypeError as error:
        raise OptimizerError(f"optimizer={optimizer!r} cannot be made: {error}") from error
    if made.needs_checkpoints and not saves:
        shown = repr(optimizer) if isinstance(optimizer, str) else type(made).__name__
        raise OptimizerError(
            f"optimizer={shown} resumes trials from checkpoints, and {name_of(train_fn)} does not save or "
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


_WIDE = 1000
"""Ratio of the bounds of a range from which evenly spread values leave several orders of magnitude almost untried."""


def scale_hints(space: SearchSpace) -> Iterator[str]:
    """Return hints about ranges of several orders of magnitude that are searched without a log scale."""
    for name, domain in space.domains.items():
        if not isinstance(domain, Float) or domain.log or domain.step is not None:
            continue
        if 0.0 < domain.low * _WIDE <= domain.high:
            yield (
                f"90 % of the values of {name!r} are above {domain.high / 10:g}, since {domain!r} spreads them evenly; "
                "pass log=True to try each order of magnitude equally often"
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
