"""The settings of a run, and the objects that a user passes for them.

The state machine and all that surrounds it read the same :class:`Settings`, so an option is declared once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maggy_like.argument_checks import seconds, whole
from maggy_like.errors import ConfigError
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import RunPaths, Store
from optimizers.checks import as_int, class_name, explains_init, short
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import Direction
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

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
        max_attempts: Number of attempts per trial, the first included. Default 3.
        trial_timeout: Seconds that one attempt may take. An attempt that does not report then is killed 5 seconds
            later. Default no limit.
        report_timeout: Seconds, at least 1, without a report or a checkpoint after which an attempt is stopped. An
            attempt that still does not report is killed. Default no limit.
        load_timeout: Seconds within which a worker must load ``train_fn`` and the modules that it uses. A worker that
            needs longer ends the run, and the error has the line at which it stands. Default 600.
        min_workers: Number of workers that are enough. If lost workers do not return within 30 s, the run continues
            without them, and a training resumes from its checkpoint. :meth:`Reporter.prepare` keeps the batch size.
        max_identical_failures: Number of identical failures that end the search. 0 means no limit. Default the number
            of parallel trials, at least 3.
        catch: Exception types that belong to the search, such as those of configurations that do not fit into
            memory. They fail their trial and never count.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> def train(lr, batch):
        ...     if batch > 256:
        ...         raise torch.cuda.OutOfMemoryError
        ...     return 1 - lr
        >>> caught = FailurePolicy(max_attempts=5, catch=(torch.cuda.OutOfMemoryError,))
        >>> result = lagom(train, {"lr": Float(0, 1), "batch": [128, 512]}, failures=caught, optimizer="random")
        >>> result.best_config["batch"]
        128
    """

    max_attempts: int = 3
    trial_timeout: float | None = None
    report_timeout: float | None = None
    load_timeout: float | None = 600.0
    min_workers: int | None = None
    max_identical_failures: int | None = None
    catch: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        self._set("max_attempts", whole("max_attempts", self.max_attempts, least=1, remedy="use 1 for no retries"))
        self._set("trial_timeout", seconds("trial_timeout", self.trial_timeout))
        self._set("report_timeout", seconds("report_timeout", self.report_timeout, least=LEAST_SILENCE))
        self._set("load_timeout", seconds("load_timeout", self.load_timeout))
        if self.min_workers is not None:
            self._set("min_workers", whole("min_workers", self.min_workers, least=1))
        count = self.max_identical_failures
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            hint = as_int(count, 0)
            raise ConfigError(
                "max_identical_failures must be an integer, 0 for no limit, or None for the default, got "
                f"{count!r}{hint and '; '}{hint}"
            )
        if not isinstance(self.catch, tuple):
            raise ConfigError(
                f"catch must be a tuple of exception types, got {short(self.catch)}; use {_typed(self.catch)}"
            )
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
    """Return the given policy, or the default."""
    if failures is None:
        return FailurePolicy()
    if not isinstance(failures, FailurePolicy):
        option = f"catch={_typed(failures)}" if _exceptions(failures) else "max_attempts=5"
        raise ConfigError(f"failures must be a FailurePolicy, got {short(failures)}; use FailurePolicy({option})")
    return failures


def _exceptions(given: object) -> list[type[BaseException]]:
    """Return the exception types among the items of ``given``, or ``given`` itself if it is one."""
    items = given if isinstance(given, tuple | list | set) else (given,)
    return [item for item in items if isinstance(item, type) and issubclass(item, BaseException)]


def _typed(given: object) -> str:
    """Return a tuple of the exception types in ``given`` as it would be typed, or one for example."""
    names = [kind.__name__ for kind in _exceptions(given) or [ValueError]]
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


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
        {'lr': 0.010, 'units': 256}
    """

    top: int = 5
    repeats: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", whole("top", self.top, least=1))
        object.__setattr__(self, "repeats", whole("repeats", self.repeats, least=LEAST_REPEATS))


def read_confirmation(given: Any) -> Confirmation | None:
    """Read the argument ``confirm``."""
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
    """Search space, objectives and optimizer of a search."""

    space: SearchSpace
    optimizer: Optimizer
    optimizer_name: str  # name of the optimizer for users
    kind: str = "search"  # what users call such a run
    metrics: tuple[str, ...] = ()  # names of the objectives. Empty if a single objective has no name yet
    directions: tuple[Direction | None, ...] = (None,)  # of each objective. None if a single objective has no name yet
    guessed: bool = False  # whether the directions follow from the names of the objectives
    value: ValueRule = "best"  # value of a trial (see :class:`~optimizers.core.study_state.Ranking`)
    seed: int = 0
    max_budget: int = 1
    open_ended: bool = False  # whether nobody has given ``max_budget``
    n_trials: int | None = None  # number of configurations to try. None for no limit, 0 to train without a search
    began_with: int | None = None  # the same as it was given when the search began (see :class:`Problem`)
    is_timed: bool = False  # whether only time limits the search
    n_configs: int | None = None  # number of configurations of the space, if the search ends once each was tried
    points: tuple[Config, ...] = ()  # all of :func:`~optimizers.core.study.initial_points`
    earlier: Earlier = ()  # observations of earlier runs
    groups: tuple[str, ...] = ()  # descriptions of the groups of trials to compare. Empty if the best trial is sought
    # How the groups are compared, for readers of the run's files.
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
            began_with=self.began_with,
        )

    @property
    def finds_best(self) -> bool:
        """Whether the search looks for the best trial, instead of comparing groups of trials."""
        return not self.groups

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
    """Name and files of a run."""

    name: str  # name of the run
    paths: RunPaths  # paths of its files
    resume: bool = False  # whether to resume its journal
    kept: Store = field(default_factory=Store)  # how much to keep of the states and files of trials
    code: str = ""  # hash of the training function's code. Empty if unknown
    # Whether to delete an earlier run of that name. None if the caller does not have this argument.
    overwrite: bool | None = None
    function: str = ""  # where another process finds the function that a trial calls (see ``code.place_of``)


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

    @classmethod
    def of(cls, study: Study) -> Settings:
        """Return the settings of a run of which only the study is known: it has no files and no limits."""
        search = SearchSettings(study.problem.space, study.optimizer, type(study.optimizer).__name__)
        return cls(search, FileSettings("", RunPaths("", "")))

    @property
    def paths(self) -> RunPaths:
        """Paths of the run's files."""
        return self.files.paths

    @property
    def about(self) -> str:
        """A short description for the list of a cluster's jobs."""
        if self.training is not None and self.training.config is not None:
            return "training"
        kind, n_trials = self.search.kind, self.search.n_trials
        return kind if n_trials is None else f"{kind} of {n_trials} trial{'s' * (n_trials != 1)}"
