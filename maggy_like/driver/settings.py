"""The settings of a run and the objects that a user passes for them, its outcome, and its number of workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from maggy_like.argument_checks import require, seconds, whole
from maggy_like.display import Display
from maggy_like.engines.base import Capacity, Engine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers.base import Listener
from optimizers.checks import as_int, class_name, explains_init, short
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import Direction
from optimizers.core.study_state import ValueRule
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.driver.state_machine import StateMachine


LEAST_IDENTICAL = 3
"""Trials that must have failed in the same way before a search ends for it, however few workers it has."""

LEAST_SILENCE = 1.0
"""Seconds below which a worker cannot distinguish a silent trial from one whose reports are on their way."""


@explains_init
@dataclass(frozen=True)
class FailurePolicy:
    """Retries of failed trials, their time limits, and when failures end the whole search.

    A trial that fails is retried from its last checkpoint, whether the cause is an exception, a crash, a time limit or
    a lost worker. A trial that fails twice in the same way without progress is not retried, and neither is one that
    reports a value that is not a number.

    A bug in the training function fails every trial. Once enough trials have failed in the same way and none has
    succeeded, the search ends, and :func:`~maggy_like.lagom` raises a
    :class:`~maggy_like.errors.TrialsFailedError` with the traceback. Two failures are the same if they are exceptions
    of one type at one place (file, function and line), or crashes of one kind. A trial succeeds if it returns or is
    paused. Failures of machines, such as lost workers or an unreachable store, never count.

    Args:
        max_attempts: Number of attempts per trial. Default 3.
        trial_timeout: Seconds that one attempt may take. An attempt that does not report then is killed 5 seconds
            later. Default no limit.
        report_timeout: Seconds, at least 1, without a report or a checkpoint after which an attempt is stopped. An
            attempt that still does not report is killed. Default no limit.
        min_workers: Number of workers that are enough. If lost workers do not return within 30 s, the run continues
            without them, and a training resumes from its checkpoint. :meth:`Reporter.prepare` keeps the batch size.
        max_identical_failures: Number of identical failures that end the search. 0 means no limit. Default the number
            of parallel trials, at least 3.
        catch: Exception types that belong to the search, such as those of configurations that do not fit into
            memory. They fail their trial and never count.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, failures=FailurePolicy(max_attempts=5, catch=(torch.cuda.OutOfMemoryError,)))
    """

    max_attempts: int = 3
    trial_timeout: float | None = None
    report_timeout: float | None = None
    min_workers: int | None = None
    max_identical_failures: int | None = None
    catch: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        self._set("max_attempts", whole("max_attempts", self.max_attempts, least=1, remedy="use 1 for no retries"))
        self._set("trial_timeout", seconds("trial_timeout", self.trial_timeout))
        self._set("report_timeout", seconds("report_timeout", self.report_timeout, least=LEAST_SILENCE))
        if self.min_workers is not None:
            self._set("min_workers", whole("min_workers", self.min_workers, least=1))
        count = self.max_identical_failures
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            hint = as_int(count, 0)
            raise ConfigError(
                "max_identical_failures must be a whole number, 0 for no limit, or None for the default, got "
                f"{count!r}{hint and '; '}{hint}"
            )
        if not isinstance(self.catch, tuple):
            raise ConfigError(f"catch must be a tuple of exception types, got {short(self.catch)}; use (ValueError,)")
        for kind in self.catch:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"catch must contain exception types, got {short(kind)}; use (ValueError,)")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def enough(self, parallel: int) -> int:
        """Return how many identical failures end a search that runs ``parallel`` trials in parallel; 0 for no limit."""
        return max(LEAST_IDENTICAL, parallel) if self.max_identical_failures is None else self.max_identical_failures

    @property
    def names(self) -> frozenset[str]:
        """The caught exceptions by the names that workers send."""
        return frozenset(map(class_name, self.catch))


def read_policy(failures: Any) -> FailurePolicy:
    """Return the given policy, or the default.

    Raises:
        ConfigError: It is not a policy.
    """
    if failures is None:
        return FailurePolicy()
    if not isinstance(failures, FailurePolicy):
        raise ConfigError(f"failures must be a FailurePolicy, got {short(failures)}; use FailurePolicy(max_attempts=5)")
    return failures


LEAST_REPEATS = 2
"""Without two repeats nothing is known about the noise."""


@explains_init
@dataclass(frozen=True)
class Confirmation:
    """Train the best configurations of a search again, with other seeds, to find out which one is the best.

    The best value of a noisy search is biased upwards. So the best configurations are trained again with seeds 1000,
    1001 and so on, the same for all of them, on the workers of the search. Each gets two repeats. Then a configuration
    that would hardly win any more gets no others, and the winner gets all. ``result.confirmed`` has the comparison.

    The training function must take ``seed``, with a default for the search, and use it for everything random.

    Args:
        top: Number of configurations that are trained again. Default 5.
        repeats: Maximum number of trainings of each, at least 2. Default 5.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, confirm=Confirmation(top=3, repeats=10))
        >>> result.confirmed.config
    """

    top: int = 5
    repeats: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", whole("top", self.top, least=1))
        object.__setattr__(self, "repeats", whole("repeats", self.repeats, least=LEAST_REPEATS))


def read_confirmation(given: Any) -> Confirmation | None:
    """Read the argument ``confirm``.

    Raises:
        ConfigError: It is neither True, False nor a :class:`Confirmation`.
    """
    if given is False or given is None:
        return None
    if given is True:
        return Confirmation()
    if not isinstance(given, Confirmation):
        remedy = "Confirmation()" if given is Confirmation else "Confirmation(top=5, repeats=5)"
        raise ConfigError(f"confirm must be True, False or a Confirmation, got {short(given)}; use {remedy}")
    return given


@dataclass(frozen=True)
class SearchSettings:
    """Search space, objectives and optimizer of a search.

    Attributes:
        directions: Direction of each objective. None if a single objective has no name yet.
    """

    space: SearchSpace
    optimizer: Optimizer
    optimizer_name: str  # name of the optimizer for users
    metrics: tuple[str, ...] = ()  # names of the objectives. Empty if a single objective has no name yet
    directions: tuple[Direction | None, ...] = (None,)
    guessed: bool = False  # whether the directions follow from the names of the objectives
    value: ValueRule = "best"  # value of a trial (see :class:`~optimizers.core.study_state.Ranking`)
    seed: int = 0
    max_budget: int = 1
    open_ended: bool = False  # whether nobody has given ``max_budget``
    n_trials: int | None = None  # number of configurations to try. None for no limit, 0 for a training without a search
    is_timed: bool = False  # whether only time limits the search
    n_configs: int | None = None  # number of configurations of the space, if the search ends once each was tried
    points: tuple[Config, ...] = ()  # all of :func:`~optimizers.core.study.initial_points`
    earlier: Earlier = ()  # observations of earlier runs
    variants: tuple[str, ...] = ()  # descriptions of the variants of an ablation, whose trials are compared in groups
    comparisons: Mapping[str, Any] = field(
        default_factory=dict
    )  # how they are compared, for readers of the run's files

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
    """Limits that end a search before all its trials have ended."""

    timeout: float | None = None  # seconds that the search may take
    target: float | None = None  # value of the objective at which it ends


@dataclass(frozen=True)
class SizeSettings:
    """Number of workers of a run."""

    workers: int | None = None  # number of workers. None for all slots of the engine
    max_workers: int | None = None  # upper limit of the number if ``workers`` is None. None for no limit
    workers_per_trial: int = 1  # number of workers that run one trial together


@dataclass(frozen=True)
class FileSettings:
    """Name and files of a run.

    Attributes:
        overwrite: Whether to delete an earlier run of that name. None if the caller does not have this argument.
        function: Where another process finds the function that a trial calls (see
            :func:`~maggy_like.train_function.code.place_of`).
    """

    name: str  # name of the run
    paths: RunPaths  # paths of its files
    resume: bool = False  # whether to resume its journal
    keep_checkpoints: int = 2  # number of the newest states of an attempt to keep
    code: str = ""  # hash of the training function's code. Empty if unknown
    overwrite: bool | None = None
    function: str = ""


@dataclass(frozen=True)
class TrainingSettings:
    """A training on all workers, after a search or without one."""

    steps: int  # number of steps
    config: Config | None = None  # the configuration. None for the best one of the search


@dataclass(frozen=True)
class Settings:
    """The checked settings of one run."""

    search: SearchSettings  # search space, objectives and optimizer
    files: FileSettings  # name and files
    limits: LimitSettings = field(default_factory=LimitSettings)  # limits that end the search early
    size: SizeSettings = field(default_factory=SizeSettings)  # number of workers
    failures: FailurePolicy = field(default_factory=FailurePolicy)  # retries, and when failures end the search
    confirmation: Confirmation | None = None  # repeats of the best configurations after the search. None without them
    training: TrainingSettings | None = None  # training after the search. None without one
    hints: tuple[str, ...] = ()  # lines for the user before the start
    warnings: tuple[str, ...] = ()  # those of them about mistakes, which are logged if there is no display

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
        save_returned: Stores the value of a function that may return anything (see
            :attr:`WorkerTask.returns_anything`).
        sources: Text of the files and notebook cells with the function's code.
    """

    settings: Settings  # the checked settings
    engine: Engine  # engine that provides the workers
    payload: bytes  # the training function, pickled
    preload: tuple[str, ...]  # modules that workers import once
    displays: Sequence[Display]  # displays of the run
    callbacks: Sequence[Listener] = ()  # callbacks for each recorded event
    stop: StopSwitch = field(default_factory=StopSwitch)  # switch with which other threads stop the run
    save_returned: Callable[[Any], None] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    driver: DriverSide = "client"  # place of the driver: this process (``client``) or a task of the ``cluster``


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    machine: StateMachine  # the state machine with the study
    ending: Ending  # how the run ended (see :attr:`maggy_like.Result.ending`)
    seconds: float  # wall time of all drivers of the run
    error: Exception | None = None  # error that ended the run early. The caller raises it with the result so far
    is_longer: bool = False  # whether the run took longer than ``seconds``, because a killed driver recorded no end
