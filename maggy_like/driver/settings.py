"""What a run is, checked: one object for each concern, what is run, and on how many workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from maggy_like.display import Display
from maggy_like.driver.failure_policy import FailurePolicy
from maggy_like.driver.followers import Listener
from maggy_like.driver.run_handle import StopSwitch
from maggy_like.engines.base import Capacity, Engine
from maggy_like.errors import EngineError
from maggy_like.extras import require
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import Direction
from optimizers.core.ranking import Worth
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.driver.state_machine import StateMachine


@dataclass(frozen=True)
class SearchSettings:
    """What is searched, and by which optimizer.

    Attributes:
        optimizer_name: What people call the optimizer.
        metrics: Names of the objectives; empty if the only one's is not given.
        directions: One for each objective; None where the only one's name is not known yet.
        guessed: Whether nobody has given the directions, so that the objectives' names say them.
        value: What a trial is worth (see :class:`~optimizers.core.ranking.Ranking`).
        n_trials: How many configurations to try; None for no bound, 0 where there is only a training.
        n_configs: How many configurations there are, where the search ends once each was tried.
        points: All of :func:`~optimizers.core.initial_points.initial_points`.
        is_timed: Whether time alone bounds the search.
        earlier: What earlier runs observed.
        variants: Those of an ablation, described; trials are compared in groups then, and none of them is the best.
    """

    space: SearchSpace
    optimizer: Optimizer
    optimizer_name: str
    metrics: tuple[str, ...] = ()
    directions: tuple[Direction | None, ...] = (None,)
    guessed: bool = False
    value: Worth = "best"
    seed: int = 0
    max_budget: int = 1
    n_trials: int | None = None
    is_timed: bool = False
    n_configs: int | None = None
    points: tuple[Config, ...] = ()
    earlier: Earlier = ()
    variants: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """What the optimizer was checked against."""
        return Problem(
            self.space,
            self.seed,
            self.max_budget,
            self.n_trials,
            self.earlier,
            n_objectives=len(self.directions),
            is_timed=self.is_timed,
        )

    @property
    def is_ablation(self) -> bool:
        """Whether it is an ablation."""
        return bool(self.variants)

    @property
    def objective(self) -> str | None:
        """Name of the first objective, if it is known."""
        return self.metrics[0] if self.metrics else None

    @property
    def others(self) -> tuple[tuple[Direction, str], ...]:
        """Direction and name of all objectives but the first."""
        return tuple((way or "max", name) for way, name in zip(self.directions[1:], self.metrics[1:], strict=True))


@dataclass(frozen=True)
class LimitSettings:
    """When a search ends before all its trials have.

    Attributes:
        timeout: Seconds that it may take.
        target: Value of the objective with which it is over.
    """

    timeout: float | None = None
    target: float | None = None


@dataclass(frozen=True)
class SizeSettings:
    """On how many workers it runs.

    Attributes:
        workers: How many there are; None for what the engine has.
        max_workers: How many there may be where ``workers`` is None; None for what the engine has.
        workers_per_trial: How many workers run a trial together.
    """

    workers: int | None = None
    max_workers: int | None = None
    workers_per_trial: int = 1


@dataclass(frozen=True)
class FileSettings:
    """Where it is kept.

    Attributes:
        name: The run's name.
        paths: Where its files are.
        resume: Whether its journal is to be resumed.
        overwrite: Whether a run of that name is to be deleted first; None where the caller has no such argument.
        keep_checkpoints: How many of an attempt's newest states to keep.
        code: Identifies the code of the training function; empty if that is not known.
    """

    name: str
    paths: RunPaths
    resume: bool = False
    keep_checkpoints: int = 2
    code: str = ""
    overwrite: bool | None = None


@dataclass(frozen=True)
class TrainingSettings:
    """A training on the whole gang, after the search or alone.

    Attributes:
        steps: How many.
        config: The configuration; None for the best of the search.
    """

    steps: int
    config: Config | None = None


@dataclass(frozen=True)
class Settings:
    """One run, checked.

    Attributes:
        search: What is searched.
        files: Where it is kept.
        limits: When it ends early.
        size: On how many workers it runs.
        failures: What becomes of trials that fail, and when they end the whole search.
        training: The training that follows; None if none does.
        hints: Lines that the user should know before it starts.
    """

    search: SearchSettings
    files: FileSettings
    limits: LimitSettings = field(default_factory=LimitSettings)
    size: SizeSettings = field(default_factory=SizeSettings)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    training: TrainingSettings | None = None
    hints: tuple[str, ...] = ()

    @property
    def paths(self) -> RunPaths:
        """Where the run's files are."""
        return self.files.paths

    @property
    def about(self) -> str:
        """What it is, in a few words, for whoever sees its workers in a list of a cluster's jobs."""
        if self.training is not None and self.training.config is not None:
            return "training"
        kind, n_trials = "ablation" if self.search.is_ablation else "search", self.search.n_trials
        return kind if n_trials is None else f"{kind} of {n_trials} trial{'s' * (n_trials != 1)}"


MOST_UNASKED = 64
"""Workers to which a gang grows at most on a cluster that has no bound, unless somebody asks for more."""


def count_workers(settings: Settings, engine: Capacity) -> int:
    """How many workers to launch; on an elastic engine how many there may be.

    Raises:
        EngineError: More are needed than there are slots, or workers cannot start as they would have to.
        UserError: Several of them are to run one trial together, and torch, through which they meet, is missing.
    """
    size = _size(settings, engine)
    together = settings.size.workers_per_trial if settings.training is None else size
    if together > 1 and engine.is_on_this_machine:
        require("torch", f"running one function on {together} workers together")
    return size


def _size(settings: Settings, engine: Capacity) -> int:
    asked = settings.size
    engine.check_gang(_together(settings))
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
    if engine.is_on_this_machine:  # whose limits bound a default too
        engine.require(size)
    return size


def least_workers(settings: Settings, engine: Capacity, size: int) -> int:
    """How many of a gang's workers are enough, where the others are lost or do not come."""
    if settings.failures.min_workers is not None:
        return settings.failures.min_workers
    only_trains = settings.training is not None and settings.search.n_trials == 0
    return settings.size.workers_per_trial if engine.is_elastic and not only_trains else size


def size_hints(settings: Settings, engine: Capacity, size: int) -> list[str]:
    """Hints about the size: workers that cannot be used, and a bound that nobody asked for."""
    hints, asked = engine.hints(size), settings.size
    if rest := size % asked.workers_per_trial:
        given = f"workers={size}" if asked.workers is not None or not engine.is_elastic else f"a gang of {size}"
        hints.append(
            f"{given} is no multiple of workers_per_trial={asked.workers_per_trial}: {rest} of them will "
            "idle while the others run trials"
        )
    if asked.workers is None and asked.max_workers is None and engine.is_elastic and _is_cut(settings, engine):
        hints.append(f"the gang grows to {size} workers at most; pass max_workers=N for more")
    return hints


def _growth(settings: Settings, engine: Capacity) -> int:
    """How far a gang of no given size may grow."""
    if settings.training is not None:
        raise EngineError(
            f"engine={engine.name!r} grows with the cluster, so a training must know how many workers to wait for; "
            "pass workers=N"
        )
    most = engine.most_workers()
    if settings.size.max_workers is not None:
        return settings.size.max_workers if most is None else most
    return MOST_UNASKED if most is None else min(most, MOST_UNASKED)


def _is_cut(settings: Settings, engine: Capacity) -> bool:
    """Whether more workers than :data:`MOST_UNASKED` could come, and be of use."""
    most, of_use = engine.most_workers(), settings.search.n_trials
    fits = of_use is not None and of_use * settings.size.workers_per_trial <= MOST_UNASKED
    return not fits and (most is None or most > MOST_UNASKED)


def _together(settings: Settings) -> str:
    """What has several workers run one trial; empty if nothing does."""
    if settings.size.workers_per_trial > 1:
        return f"workers_per_trial={settings.size.workers_per_trial}"
    return "a training on the whole gang" if settings.training is not None and settings.size.workers != 1 else ""


DriverSide = Literal["client", "cluster"]
"""Where the driver of a run is."""


@dataclass(frozen=True)
class RunSpec:
    """What to run, where, and who watches.

    Attributes:
        settings: The search and the training, checked.
        engine: Provides the workers.
        payload: The training function, pickled.
        preload: Modules that workers import once.
        displays: Show the run, each at its own pace.
        callbacks: Get each recorded event.
        stop: By which other threads stop the run.
        save_returned: Writes what the function returned, where it is no training (see
            :attr:`WorkerTask.returns_anything`).
        sources: Text of the files and notebook cells that the function's code is from.
        driver: Where the driver runs: in this process, the ``client``, or in a task of the ``cluster``.
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
    """What came of a run.

    Attributes:
        machine: With the study.
        ending: How it ended (see :attr:`maggy_like.Result.ending`).
        seconds: Wall time in which drivers had the run, earlier ones too.
        error: What ended it early, to be raised by the caller once it has the result so far.
        is_longer: Whether they had it for longer than is known, as one was killed.
    """

    machine: StateMachine
    ending: Ending
    seconds: float
    error: Exception | None = None
    is_longer: bool = False
