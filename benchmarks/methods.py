"""The methods that are compared, by name, and one run of one of them."""

from __future__ import annotations

import importlib.metadata
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from benchmarks import peers
from benchmarks.behaviour import behaviour
from benchmarks.drive import Peer, Reports, drive, search
from benchmarks.peers import SyneSearch
from benchmarks.runs import Kind, Run, improvements
from benchmarks.tasks import Task
from optimizers import ASHA, Optimizer, OptimizerError, RandomSearch, make_optimizer

WORKERS = {"sf": 4, "mf": 8}
OURS = "optimizers "
"""How the code of a run of ours begins; what it does follows (:mod:`benchmarks.behaviour`)."""
N_TRIALS = 100
"""Trainings of a single-fidelity search."""
HORIZON = 6.0
"""Length of a multi-fidelity search, in mean full trainings of one worker."""


@dataclass(frozen=True, slots=True)
class Method(ABC):
    """Something that searches.

    Attributes:
        kind: ``sf`` with full trainings, ``mf`` with reports of every step.
        quick: Whether it runs unasked: what takes minutes, and what is there to be tried alone, runs where it is named.
    """

    name: str
    kind: Kind
    quick: bool

    @property
    @abstractmethod
    def code(self) -> str | None:
        """What a run would be made by; None if it is not installed."""

    @abstractmethod
    def reports(self, task: Task, seed: int, n_trials: int | None, horizon: float | None) -> Reports:
        """One search in virtual time."""

    def run(self, task: Task, seed: int) -> Run:
        """One search by the protocol of its kind.

        Raises:
            RuntimeError: The library is not installed.
        """
        if self.code is None:
            raise RuntimeError(f"{self.name} is not installed; see {peers.__name__} for how to get it")
        horizon = HORIZON * task.full_seconds if self.kind == "mf" else None
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that are taken as they are
            reports = self.reports(task, seed, N_TRIALS if self.kind == "sf" else None, horizon)
        cpu = round(time.process_time() - start, 2)
        end = reports[-1][0] if horizon is None else horizon
        points = improvements(reports, task)
        return Run(self.kind, self.name, task.name, seed, self.code, cpu, len(reports), round(end, 3), points)


@dataclass(frozen=True, slots=True)
class Ours(Method):
    """One of our optimizers."""

    make: Callable[[], Optimizer]

    @property
    def code(self) -> str:
        return OURS + _behaviour(self)

    def reports(self, task: Task, seed: int, n_trials: int | None, horizon: float | None) -> Reports:
        workers = WORKERS[self.kind]
        return search(self.make(), task, seed=seed, workers=workers, n_trials=n_trials, horizon=horizon)


@dataclass(frozen=True, slots=True)
class Library(Method):
    """A search of another library; ``package`` is the distribution that it comes with."""

    package: str
    make: Callable[[Task, int], Peer]

    @property
    def code(self) -> str | None:
        try:
            return f"{self.package} {importlib.metadata.version(self.package)}"
        except importlib.metadata.PackageNotFoundError:
            return None

    def reports(self, task: Task, seed: int, n_trials: int | None, horizon: float | None) -> Reports:
        workers = WORKERS[self.kind]
        return drive(self.make(task, seed), task, workers=workers, n_trials=n_trials, horizon=horizon)


@cache
def _behaviour(method: Ours) -> str:
    workers = WORKERS[method.kind]
    if method.kind == "sf":
        return behaviour(method.make, workers=workers, n_trials=60)
    return behaviour(method.make, workers=workers, trainings=3.0)


def _ours(name: str, kind: Kind, *, quick: bool = True) -> list[Ours]:
    """The optimizer registered as ``name``, if there is one."""
    try:
        make_optimizer(name)
    except OptimizerError:
        return []
    return [Ours(name, kind, quick, lambda: make_optimizer(name))]


def _syne(name: str, searcher: str, *, quick: bool = True, update_frequency: int = 1) -> Library:
    def make(task: Task, seed: int) -> Peer:
        return SyneSearch(searcher, task.space, seed, task.max_budget, update_frequency=update_frequency)

    return Library(name, "mf", quick, "syne-tune", make)


METHODS: tuple[Method, ...] = (
    *_ours("random", "sf"),
    *_ours("bayesian", "sf"),
    Library("optuna_tpe", "sf", True, "optuna", lambda task, seed: peers.optuna_tpe(task.space, seed)),
    Library("optuna_gp", "sf", False, "optuna", lambda task, seed: peers.optuna_gp(task.space, seed)),
    Library("skopt_gp", "sf", False, "scikit-optimize", lambda task, seed: peers.SkoptSearch(task.space, seed)),
    Library("ax", "sf", False, "ax-platform", lambda task, seed: peers.AxSearch(task.space, seed)),
    *_ours("random", "mf"),
    Ours("asha_random", "mf", True, lambda: ASHA(sampler=RandomSearch())),
    *_ours("asha", "mf"),
    *_ours("bohb", "mf", quick=False),
    *_ours("mobster", "mf", quick=False),
    Library("optuna_sh_tpe", "mf", True, "optuna", lambda task, seed: peers.optuna_sh_tpe(task.space, seed)),
    _syne("syne_asha", "random_search"),
    _syne("syne_bohb", "kde"),
    _syne("syne_cqr", "cqr", quick=False, update_frequency=WORKERS["mf"]),
)


def counts(run: Run) -> bool:
    """Whether a run stands for what is installed here; another library's always does."""
    if not run.code.startswith(OURS):
        return True
    return any(run.code == method.code for method in METHODS if (method.kind, method.name) == (run.kind, run.method))
