"""The checked settings of a run, its specification and outcome, and its number of workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from maggy_like.display import Display
from maggy_like.driver.confirmation import Confirmation
from maggy_like.driver.failure_policy import FailurePolicy
from maggy_like.driver.followers import Listener
from maggy_like.engines.base import Capacity, Engine
from maggy_like.errors import EngineError
from maggy_like.extras import require
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import Direction
from optimizers.core.study_state import ValueRule
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.driver.state_machine import StateMachine


@dataclass(frozen=True)
class SearchSettings:
    """Search space, objectives and optimizer of a search.

    Attributes:
        optimizer_name: Name of the optimizer for users.
        metrics: Names of the objectives. Empty if a single objective has no name yet.
        directions: Direction of each objective. None if a single objective has no name yet.
        guessed: Whether the directions follow from the names of the objectives.
        value: Value of a trial (see :class:`~optimizers.core.study_state.Ranking`).
        open_ended: Whether nobody has given ``max_budget``.
        n_trials: Number of configurations to try. None for no limit, 0 for a training without a search.
        n_configs: Number of configurations of the space, if the search ends once each was tried.
        points: All of :func:`~optimizers.core.study.initial_points`.
        is_timed: Whether only time limits the search.
        earlier: Observations of earlier runs.
        variants: Descriptions of the variants of an ablation, whose trials are compared in groups.
        comparisons: How they are compared, for readers of the run's files.
    """

    space: SearchSpace
    optimizer: Optimizer
    optimizer_name: str
    metrics: tuple[str, ...] = ()
    directions: tuple[Direction | None, ...] = (None,)
    guessed: bool = False
    value: ValueRule = "best"
    seed: int = 0
    max_budget: int = 1
    open_ended: bool = False
    n_trials: int | None = None
    is_timed: bool = False
    n_configs: int | None = None
    points: tuple[Config, ...] = ()
    earlier: Earlier = ()
    variants: tuple[str, ...] = ()
    comparisons: Mapping[str, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        """The problem for which the optimizer was checked."""
        return Problem(
            self.space,
            self.seed,
            self.max_budget,
            self.n_trials,
            self.earlier,
            n_objectives=len(self.directions),
            is_timed=self.is_timed,
            direction=self.directions[0],
        )

    @property
    def is_ablation(self) -> bool:
        """Whether the search is an ablation."""
        return bool(self.variants)

    @property
    def objective(self) -> str | None:
        """Name of the first objective, if known."""
        return self.metrics[0] if self.metrics else None

    @property
    def others(self) -> tuple[tuple[Direction, str], ...]:
        """Direction and name of all objectives except the first."""
        return tuple((way or "max", name) for way, name in zip(self.directions[1:], self.metrics[1:], strict=True))


@dataclass(frozen=True)
class LimitSettings:
    """Limits that end a search before all its trials have ended.

    Attributes:
        timeout: Seconds that the search may take.
        target: Value of the objective at which it ends.
    """

    timeout: float | None = None
    target: float | None = None


@dataclass(frozen=True)
class SizeSettings:
    """Number of workers of a run.

    Attributes:
        workers: Number of workers. None for all slots of the engine.
        max_workers: Upper limit of the number if ``workers`` is None. None for no limit.
        workers_per_trial: Number of workers that run one trial together.
    """

    workers: int | None = None
    max_workers: int | None = None
    workers_per_trial: int = 1


@dataclass(frozen=True)
class FileSettings:
    """Name and files of a run.

    Attributes:
        name: Name of the run.
        paths: Paths of its files.
        resume: Whether to resume its journal.
        overwrite: Whether to delete an earlier run of that name. None if the caller does not have this argument.
        function: Where another process finds the function that a trial calls (see
            :func:`~maggy_like.train_function.code.place_of`).
        keep_checkpoints: Number of the newest states of an attempt to keep.
        code: Hash of the training function's code. Empty if unknown.
    """

    name: str
    paths: RunPaths
    resume: bool = False
    keep_checkpoints: int = 2
    code: str = ""
    overwrite: bool | None = None
    function: str = ""


@dataclass(frozen=True)
class TrainingSettings:
    """A training on all workers, after a search or without one.

    Attributes:
        steps: Number of steps.
        config: The configuration. None for the best one of the search.
    """

    steps: int
    config: Config | None = None


@dataclass(frozen=True)
class Settings:
    """The checked settings of one run.

    Attributes:
        search: Search space, objectives and optimizer.
        files: Name and files.
        limits: Limits that end the search early.
        size: Number of workers.
        failures: Retries, and when failures end the search.
        confirmation: Repeats of the best configurations after the search. None without them.
        training: Training after the search. None without one.
        hints: Lines for the user before the start.
    """

    search: SearchSettings
    files: FileSettings
    limits: LimitSettings = field(default_factory=LimitSettings)
    size: SizeSettings = field(default_factory=SizeSettings)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    confirmation: Confirmation | None = None
    training: TrainingSettings | None = None
    hints: tuple[str, ...] = ()

    @property
    def paths(self) -> RunPaths:
        """Paths of the run's files."""
        return self.files.paths

    @property
    def about(self) -> str:
        """A short description for the list of a cluster's jobs."""
        if self.training is not None and self.training.config is not None:
            return "training"
        kind, n_trials = "ablation" if self.search.is_ablation else "search", self.search.n_trials
        return kind if n_trials is None else f"{kind} of {n_trials} trial{'s' * (n_trials != 1)}"


MOST_UNASKED = 64
"""Workers to which a run grows at most on a cluster without a limit, unless the caller asks for more."""


def count_workers(settings: Settings, engine: Capacity) -> int:
    """Return how many workers to launch. On an elastic engine it is an upper limit.

    Raises:
        EngineError: There are too few slots, or workers cannot start in the way that the run needs.
        UserError: Several workers must run one trial together, and torch is missing.
    """
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
    return "a training on all workers" if settings.training is not None and settings.size.workers != 1 else ""


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
    """Everything that the runner needs for a run.

    Attributes:
        settings: The checked settings.
        engine: Engine that provides the workers.
        payload: The training function, pickled.
        preload: Modules that workers import once.
        displays: Displays of the run.
        callbacks: Callbacks for each recorded event.
        stop: Switch with which other threads stop the run.
        save_returned: Stores the value of a function that may return anything (see
            :attr:`WorkerTask.returns_anything`).
        sources: Text of the files and notebook cells with the function's code.
        driver: Place of the driver: this process (``client``) or a task of the ``cluster``.
    """

    settings: Settings
    engine: Engine
    payload: bytes
    preload: tuple[str, ...]
    displays: Sequence[Display]
    callbacks: Sequence[Listener] = ()
    stop: StopSwitch = field(default_factory=StopSwitch)
    save_returned: Callable[[Any], None] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    driver: DriverSide = "client"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        machine: The state machine with the study.
        ending: How the run ended (see :attr:`maggy_like.Result.ending`).
        seconds: Wall time of all drivers of the run.
        error: Error that ended the run early. The caller raises it with the result so far.
        is_longer: Whether the run took longer than ``seconds``, because a killed driver recorded no end.
    """

    machine: StateMachine
    ending: Ending
    seconds: float
    error: Exception | None = None
    is_longer: bool = False
