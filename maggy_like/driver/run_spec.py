"""A run that is ready to start: its settings, its engine with the number of workers, and those who follow it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from maggy_like.argument_checks import require
from maggy_like.display import Display
from maggy_like.driver.followers import Listener
from maggy_like.driver.settings import Settings
from maggy_like.engines.base import Capacity, Engine
from maggy_like.errors import EngineError
from maggy_like.protocol.task import WorkingDirectory

MOST_UNASKED = 64
"""Workers to which a run grows at most on a cluster without a limit, unless the caller asks for more."""


def count_workers(settings: Settings, engine: Capacity) -> int:
    """Return how many workers to launch. On an elastic engine it is an upper limit."""
    size = _size(settings, engine)
    together = settings.size.workers_per_trial if settings.training is None else size
    if together > 1 and engine.is_on_this_machine:
        require("torch", f"running one function on {together} workers together")
    return size


def _size(settings: Settings, engine: Capacity) -> int:
    asked = settings.size
    engine.check_workers(_together(settings))
    if asked.workers is not None:
        engine.require(asked.workers)
        return asked.workers
    size = _growth(settings, engine) if engine.is_elastic else engine.default_workers()
    if settings.search.n_trials is not None and settings.training is None:
        size = min(size, settings.search.n_trials * asked.workers_per_trial)
    if asked.max_workers is not None:
        size = min(size, asked.max_workers)
    for name, needed in (
        ("workers_per_trial", asked.workers_per_trial),
        ("min_workers", settings.failures.min_workers or 1),
    ):
        if needed > size:
            remedy = (
                "use engine='local'" if engine.name == "inline" else "pass workers=N, or give the engine more slots"
            )
            raise EngineError(
                f"{name}={needed}, but engine={engine.name!r} has {size} worker{'s' * (size > 1)} by default; {remedy}"
            )
    if engine.is_on_this_machine:  # whose limits hold for a default, too
        engine.require(size)
    return size


def least_workers(settings: Settings, engine: Capacity, size: int) -> int:
    """Return how many workers are enough if the others are lost or do not start."""
    if settings.failures.min_workers is not None:
        return settings.failures.min_workers
    only_trains = settings.training is not None and settings.search.n_trials == 0
    return settings.size.workers_per_trial if engine.is_elastic and not only_trains else size


def size_hints(settings: Settings, engine: Capacity, size: int) -> list[str]:
    """Return hints about workers that cannot be used, and about a limit that the caller did not set."""
    hints, asked = engine.hints(size), settings.size
    if rest := size % asked.workers_per_trial:
        given = f"workers={size}" if asked.workers is not None or not engine.is_elastic else f"{size} workers"
        hints.append(
            f"{given} is not a multiple of workers_per_trial={asked.workers_per_trial}: {rest} of them will "
            "be idle while the others run trials"
        )
    if asked.workers is None and asked.max_workers is None and engine.is_elastic and _is_cut(settings, engine):
        hints.append(f"the run grows to {size} workers at most; use max_workers=N for more")
    return hints


def _growth(settings: Settings, engine: Capacity) -> int:
    """Return how far the number of workers may grow if it is not given."""
    if settings.training is not None:
        raise EngineError(
            f"engine={engine.name!r} grows with the cluster, so a training needs a number of workers to wait for; "
            "use workers=N"
        )
    most = engine.most_workers()
    if settings.size.max_workers is not None:
        return settings.size.max_workers if most is None else most
    return MOST_UNASKED if most is None else min(most, MOST_UNASKED)


def _is_cut(settings: Settings, engine: Capacity) -> bool:
    """Return whether more than :data:`MOST_UNASKED` workers could start and be used."""
    most, of_use = engine.most_workers(), settings.search.n_trials
    fits = of_use is not None and of_use * settings.size.workers_per_trial <= MOST_UNASKED
    return not fits and (most is None or most > MOST_UNASKED)


def _together(settings: Settings) -> str:
    """Return why several workers run one trial. Empty if none do."""
    if settings.size.workers_per_trial > 1:
        return f"workers_per_trial={settings.size.workers_per_trial}"
    return "a training run on all workers" if settings.training is not None and settings.size.workers != 1 else ""


DriverSide = Literal["client", "cluster"]
"""Place of the driver of a run."""


class StopSwitch:
    """Lets any thread stop a run, even before it begins."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may interrupt
        self._stop: Callable[[], None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop the run. A run that has not begun stops as soon as it begins. After its end, nothing happens."""
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()

    def attach(self, stop: Callable[[], None]) -> None:
        """Set the function that stops the run. Called by the runner."""
        with self._lock:
            self._stop = stop
            if self._stopped:
                stop()


@dataclass(frozen=True)
class RunSpec:
    """Everything that the runner needs for a run."""

    settings: Settings  # the checked settings
    engine: Engine  # engine that provides the workers
    payload: bytes  # the training function, pickled
    preload: tuple[str, ...]  # modules that workers import once
    displays: Sequence[Display]  # displays of the run
    callbacks: Sequence[Listener] = ()  # callbacks for each recorded event
    stop: StopSwitch = field(default_factory=StopSwitch)  # switch with which other threads stop the run
    save_returned: Callable[[Any], None] | None = None  # stores what a function given to ``run`` returned
    # Text of the files and notebook cells with the function's code.
    sources: Mapping[str, str] = field(default_factory=dict)
    is_shared: bool = False  # whether trials have the caller's working directory, whatever the engine says
    driver: DriverSide = "client"  # place of the driver: this process (``client``) or a task of the ``cluster``
    began: float = field(default_factory=time.monotonic)  # time of the call, by this process's monotonic clock

    @property
    def working_directory(self) -> WorkingDirectory:
        """The working directory of trials."""
        return "shared" if self.is_shared else self.engine.working_directory
