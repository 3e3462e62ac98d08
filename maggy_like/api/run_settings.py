"""Checks of the folder, the number of workers, the engine and the function's arguments of a run."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from maggy_like.argument_checks import flag, one_of, whole
from maggy_like.display import check_progress, make_display
from maggy_like.driver.settings import DriverSide, FileSettings, RunSpec, Settings, SizeSettings
from maggy_like.engines.base import Engine
from maggy_like.engines.local import LocalEngine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.protocol.values import is_encodable, shortened
from maggy_like.storage.file_systems import within
from maggy_like.storage.run_paths import (
    RunPaths,
    check_directory,
    check_name,
    default_name,
    read_store,
    store_url,
)
from maggy_like.trackers.base import read_callbacks
from maggy_like.train_function.changed_state import state_hints
from maggy_like.train_function.code import code_hash, place_of
from maggy_like.train_function.pickling import pickle_train_fn, size_hints, sources_of
from optimizers.checks import did_you_mean, short
from optimizers.space import Config
from optimizers.space.domains import Constant, Domain
from optimizers.space.scalars import plain, read_value

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

    Args:
        function: Function that the workers call. None for ``train_fn``.

    Raises:
        UserError: An argument is wrong, or the function cannot be pickled.
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
        preload=tuple(preload),
        displays=[make_display(options.progress, with_trials=isolation == "none")],
        callbacks=listeners,
        save_returned=save_returned,
        sources=sources_of(train_fn),
        driver=read_driver(driver),
    )


def check_files(options: RunOptions) -> FileSettings:
    """Check where a run is stored, and make a name if none is given.

    Raises:
        ConfigError: An argument is wrong.
    """
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
    folder = within(check_directory(options.directory), name)
    kept = read_store(options.store)
    paths = RunPaths(folder, store_url(kept.url, folder, name))
    if not is_encodable(paths.recorded_store):
        raise ConfigError(
            f"store must be a folder whose path is UTF-8, since the journal records it, got {paths.recorded_store!r}; "
            "use another, or leave it out to keep the states in directory"
        )
    return FileSettings(
        name, paths, resume, kept.keep_checkpoints, code_hash(train_fn), overwrite, function=place_of(train_fn)
    )


_ALL = "leave it out for all slots of the engine"


def check_size(
    workers: int | None = None,
    *,
    max_workers: int | None = None,
    workers_per_trial: int = 1,
    min_workers: int | None = None,
) -> SizeSettings:
    """Check the numbers of workers, including ``min_workers`` of the failure policy.

    Raises:
        ConfigError: A number is not valid, or two do not fit together.
    """
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
    """Return the given engine, or the one with that name.

    Raises:
        ConfigError: There is no such engine.
        EngineError: The engine cannot be used here.
    """
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
    """Check the place of the driver.

    Raises:
        ConfigError: There is no such place.
    """
    return cast(DriverSide, one_of("driver", driver, get_args(DriverSide)))


def check_config(config: Mapping[str, Any] | None) -> Config:
    """Check the arguments of a function that :func:`~maggy_like.run` runs.

    Raises:
        ConfigError: They are not plain values by name.
    """
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
