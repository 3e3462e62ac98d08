"""What a run is, checked: one object for each concern."""

from __future__ import annotations

from dataclasses import dataclass, field

from maggy_like.driver.failure_policy import FailurePolicy
from maggy_like.storage.journal import Earlier
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.base import Optimizer, Problem
from optimizers.core.direction import Direction
from optimizers.core.study_state import ValueRule
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace


@dataclass(frozen=True)
class SearchSettings:
    """What is searched, and by which optimizer.

    Attributes:
        optimizer_name: What people call the optimizer.
        metrics: Names of the objectives; empty if the only one's is not given.
        directions: One for each objective; None where the only one's name is not known yet.
        guessed: Whether nobody has given the directions, so that the objectives' names say them.
        value: What a trial is worth (see :class:`~optimizers.core.study_state.Ranking`).
        open_ended: Whether nobody has given ``max_budget``.
        n_trials: How many configurations to try; None for no bound, 0 where there is only a training.
        n_configs: How many configurations there are, where the search ends once each was tried.
        points: All of :func:`~optimizers.core.study.initial_points`.
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
class GangSettings:
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
        gang: On how many workers it runs.
        failures: What becomes of trials that fail, and when they end the whole search.
        training: The training that follows; None if none does.
        hints: Lines that the user should know before it starts.
    """

    search: SearchSettings
    files: FileSettings
    limits: LimitSettings = field(default_factory=LimitSettings)
    gang: GangSettings = field(default_factory=GangSettings)
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
