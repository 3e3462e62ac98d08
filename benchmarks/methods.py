"""The methods that are compared, by name, and one run of one of them."""

from __future__ import annotations

import importlib.metadata
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from benchmarks import peers
from benchmarks.behaviour import behaviour
from benchmarks.drive import Peer, Reports, drive, search
from benchmarks.runs import Kind, Run, improvements
from benchmarks.tasks import Task
from optimizers import ASHA, Optimizer, RandomSearch, make_optimizer

WORKERS = {"sf": 4, "mf": 8}
OURS = "optimizers "
"""How the code of a run of ours begins; what it does follows (:mod:`benchmarks.behaviour`)."""
N_TRIALS = 100
"""Trainings of a single-fidelity search."""
HORIZON = 6.0
"""Length of a multi-fidelity search, in mean full trainings of one worker."""


class Method(NamedTuple):
    """Something that searches.

    Attributes:
        kind: ``sf`` with full trainings, ``mf`` with reports of every step.
        quick: Whether it runs unasked: what takes minutes runs where it is named.
        code: Returns what a run would be made by; None if it is not installed.
        reports: Searches in virtual time on a task, with a seed, and the workers and the limit of its kind.
    """

    name: str
    kind: Kind
    quick: bool
    code: Callable[[], str | None]
    reports: Callable[..., Reports]

    def run(self, task: Task, seed: int) -> Run:
        """One search by the protocol of its kind; the library must be installed."""
        code = self.code()
        assert code is not None
        limit: dict[str, Any] = {"n_trials": N_TRIALS}
        if self.kind == "mf":
            limit = {"horizon": HORIZON * task.full_seconds}
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that are taken as they are
            reports = self.reports(task, seed, workers=WORKERS[self.kind], **limit)
        cpu = round(time.process_time() - start, 2)
        end = round(limit.get("horizon", reports[-1][0]), 3)
        return Run(self.kind, self.name, task.name, seed, code, cpu, len(reports), end, improvements(reports, task))


def _ours(name: str, kind: Kind, make: Callable[[], Optimizer] | None = None, *, quick: bool = True) -> Method:
    """One of our optimizers; without ``make``, the one registered as ``name``."""
    made = make or partial(make_optimizer, name)

    @cache
    def code() -> str:
        if kind == "sf":
            return OURS + behaviour(made, workers=WORKERS[kind], n_trials=60)
        return OURS + behaviour(made, workers=WORKERS[kind], trainings=3.0)

    return Method(name, kind, quick, code, lambda task, seed, **limits: search(made(), task, seed=seed, **limits))


def _library(name: str, kind: Kind, package: str, make: Callable[[Task, int], Peer], *, quick: bool = True) -> Method:
    """A search of another library; ``package`` is the distribution that it comes with."""

    def code() -> str | None:
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            return None

    return Method(name, kind, quick, code, lambda task, seed, **limits: drive(make(task, seed), task, **limits))


def _syne(searcher: str) -> Callable[[Task, int], Peer]:
    return lambda task, seed: peers.SyneSearch(searcher, task.space, seed, task.max_budget)


METHODS = (
    _ours("random", "sf"),
    _ours("bayesian", "sf"),
    _library("optuna_tpe", "sf", "optuna", lambda task, seed: peers.optuna_tpe(task.space, seed)),
    _library("optuna_gp", "sf", "optuna", lambda task, seed: peers.optuna_gp(task.space, seed), quick=False),
    _library("skopt_gp", "sf", "scikit-optimize", lambda task, seed: peers.SkoptSearch(task.space, seed), quick=False),
    _library("ax", "sf", "ax-platform", lambda task, seed: peers.AxSearch(task.space, seed), quick=False),
    _ours("random", "mf"),
    _ours("asha_random", "mf", lambda: ASHA(sampler=RandomSearch())),
    _ours("asha", "mf"),
    _ours("mobster", "mf", quick=False),
    _library("optuna_sh_tpe", "mf", "optuna", lambda task, seed: peers.optuna_sh_tpe(task.space, seed)),
    _library("syne_asha", "mf", "syne-tune", _syne("random_search")),
    _library("syne_bohb", "mf", "syne-tune", _syne("kde")),
)


def counts(run: Run) -> bool:
    """Whether a run stands for what is installed here; another library's always does."""
    if not run.code.startswith(OURS):
        return True
    return any(run.code == method.code() for method in METHODS if (method.kind, method.name) == (run.kind, run.method))
