"""ASHA: asynchronous successive halving over the proposals of any sampler, and optimizers that are variants of it."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from optimizers.checks import explains_init, integer, real
from optimizers.core.base import Answer, History, Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.model_based import untried
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.samplers.optuna_sampler import TPE
from optimizers.schedulers.successive_halving import (
    BracketScheduler,
    PromotionScheduler,
    StoppingScheduler,
    bracket_shares,
    rung_levels,
)
from optimizers.space.search_space import SearchSpace

Mode = Literal["promotion", "stopping"]

EARLY_ETA = 1.5
"""One trial in this many continues past an early rung, so the worst third stops."""


@explains_init
class ASHA(Optimizer):
    """Asynchronous successive halving, by default over the proposals of a Gaussian process.

    Rungs are steps at which trials are compared. ``ASHA(sampler="random")`` is the plain algorithm of the paper: random
    search, with rungs from one step on.

    Without ``sampler``, the first strict rung is ``max_budget // eta``, where one trial in ``eta`` continues. The early
    rungs below it, from ``max_budget // eta**3`` on, only stop the worst third. The Gaussian process is fitted to
    results at ``max_budget // eta`` and above. It includes those below if it then predicts the longer trainings better.

    On most of our measured learning curves, strict rungs far below the full budget made every sampler worse.
    Configurations that learn fast at first are not those that end well, and a model learns to propose them. The docs
    page "Optimizer benchmarks" has the figures.

    Source: Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for Massively Parallel
    Hyperparameter Tuning", MLSys 2020.

    Args:
        eta: Reduction factor, an integer of at least 2: the best ``1 / eta`` of a rung continue. Default 3.
        min_budget: Fewest steps of the lowest rung. Rungs are ``max_budget`` divided by powers of ``eta``, so the
            lowest one may be up to ``eta`` times higher (see :func:`rung_levels`). None (the default) for
            ``max_budget // eta**3``, or for 1 if ``sampler`` is given.
        mode: ``promotion`` pauses each trial at its rung and later continues the best from their checkpoints. Without
            checkpoints they start over, which costs up to ``eta / (eta - 1)`` of the steps. ``stopping`` decides once,
            when a trial reaches a rung. None (the default) lets ``lagom`` choose: ``promotion`` if the training
            function saves and restores states, and ``stopping`` otherwise. A custom :class:`Study` uses ``promotion``.
        sampler: Proposes the configurations: a name such as ``"random"``, an optimizer or its class. None (the default)
            for ``BayesianSearch(min_share=1 / eta)``.
        brackets: Number of Hyperband's brackets that run in parallel, each with one rung less (see
            :mod:`optimizers.schedulers.successive_halving`). None for all. Default 1.
        early_eta: Reduction factor, above 1, at rungs below ``max_budget // eta``. None (the default) for 1.5, or for
            ``eta`` if ``sampler`` is given.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer=ASHA(eta=4, mode="stopping"), max_budget=64)
    """

    def __init__(
        self,
        *,
        eta: int = 3,
        min_budget: int | None = None,
        mode: Mode | None = None,
        sampler: str | Optimizer | Callable[..., Optimizer] | None = None,
        brackets: int | None = 1,
        early_eta: float | None = None,
    ) -> None:
        self.eta = integer("eta", eta, least=2, hint="use 3")
        self.mode = _checked_mode(mode)
        self.brackets = None if brackets is None else integer("brackets", brackets, least=1)
        self.sampler = BayesianSearch(min_share=1.0 / self.eta) if sampler is None else _checked_sampler(sampler)
        self.adaptive = self.sampler.adaptive
        if min_budget is None and sampler is not None:
            min_budget = 1
        self.min_budget = None if min_budget is None else integer("min_budget", min_budget, least=1)
        if early_eta is None:
            early_eta = EARLY_ETA if sampler is None else self.eta
        self.early_eta = float(
            real("early_eta", early_eta, "a number above 1", lambda eta: eta > 1.0, "use 1.5 to stop the worst third")
        )

    def suited_to(self, *, checkpoints: bool) -> Optimizer:
        if self.mode is not None:
            return self
        suited = copy.copy(self)
        suited.mode = "promotion" if checkpoints else "stopping"
        return suited

    def validate(self, problem: Problem) -> None:
        if self.min_budget is not None and self.min_budget > problem.max_budget:
            raise OptimizerError(
                f"min_budget must be at most max_budget={problem.max_budget}, got {self.min_budget}; "
                "use a smaller min_budget or a larger max_budget"
            )
        self.sampler.validate(problem)

    def ask(self, index: int, history: History) -> Answer:
        return self.sampler.ask(index, history)

    def is_blind(self, history: History) -> bool:
        return self.sampler.is_blind(history)

    def size(self, space: SearchSpace) -> int | None:
        return self.sampler.size(space)

    def load_libraries(self) -> None:
        self.sampler.load_libraries()

    def remarks(self, problem: Problem) -> list[str]:
        remarks, most = self.sampler.remarks(problem), problem.max_budget
        if most > 1 and len(self.levels(most)) == 1:
            highest = most // self.eta
            use = f"min_budget={highest} or less" if highest else f"max_budget={self.eta} or more"
            remarks = [*remarks, f"no trial stops early, since no rung is below max_budget={most}; use {use}"]
        return remarks

    def levels(self, max_budget: int) -> tuple[int, ...]:
        """Return the steps of the rungs in a search of ``max_budget`` steps."""
        lowest = max(1, max_budget // self.eta**3) if self.min_budget is None else self.min_budget
        return rung_levels(max_budget, lowest, self.eta)

    def etas(self, levels: Sequence[int]) -> tuple[float, ...]:
        """Return the reduction factor of each rung. That of the top rung is not used."""
        n_early = max(len(levels) - 2, 0)
        return (self.early_eta,) * n_early + (float(self.eta),) * (len(levels) - n_early)

    def full_trainings(self, problem: Problem) -> float:
        if problem.n_trials is None:
            return math.inf
        etas = self.etas(self.levels(problem.max_budget))
        shares = bracket_shares(len(etas), self.eta, self._count(etas))
        return problem.n_trials * sum(share / math.prod(etas[low:-1]) for low, share in enumerate(shares))

    def scheduler(self, problem: Problem) -> PromotionScheduler | StoppingScheduler | BracketScheduler:
        levels = self.levels(problem.max_budget)
        etas = self.etas(levels)
        form = StoppingScheduler if self.mode == "stopping" else PromotionScheduler
        count = self._count(levels)
        if count == 1:
            return form(levels, etas)
        inner = [form(levels[lowest:], etas[lowest:]) for lowest in range(count)]
        return BracketScheduler(inner, bracket_shares(len(levels), self.eta, count), problem.seed)

    def _count(self, levels: Sequence[float]) -> int:
        """Return the number of brackets for a number of rungs."""
        return len(levels) if self.brackets is None else min(self.brackets, len(levels))


def _checked_mode(mode: Mode | None) -> Mode | None:
    if mode in ("min", "max", "minimize", "maximize"):
        raise OptimizerError(f"mode must be 'promotion' or 'stopping', got {mode!r}; use direction={mode[:3]!r}")
    if mode not in ("promotion", "stopping", None):
        raise OptimizerError(f"mode must be 'promotion', 'stopping' or None, got {mode!r}; use mode=None")
    return mode


def _checked_sampler(sampler: str | Optimizer | Callable[..., Optimizer]) -> Optimizer:
    made = make_optimizer(sampler)
    if type(made).scheduler is not Optimizer.scheduler:
        name = type(made).__name__
        raise OptimizerError(
            f"sampler must not have a schedule, got {name}(), whose schedule ASHA ignores; use a sampler that only "
            f"proposes, or pass {name}() as the optimizer itself"
        )
    return made


@explains_init
class MOBSTER(ASHA):
    """ASHA with rungs from one step on, over a joint Gaussian process of configuration and budget.

    The modelled scores differ from those of the paper; see :mod:`optimizers.samplers.bayesian.surrogate`.

    Source: Klein, Tiao, Lienart, Archambeau and Seeger, "Model-based Asynchronous Hyperparameter and Neural
    Architecture Search", 2020.

    Args:
        eta: Reduction factor, as in :class:`ASHA`. Default 3.
        min_budget: Fewest steps of the lowest rung, which may be up to ``eta`` times higher. Default 1.
        mode: ``promotion`` or ``stopping``, as in :class:`ASHA`.
        n_initial: Number of results before the model is used. Until then, Sobol' points are proposed. Default 8.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer="mobster", max_budget=27)
    """

    def __init__(self, *, eta: int = 3, min_budget: int = 1, mode: Mode | None = None, n_initial: int = 8) -> None:
        sampler = BayesianSearch(n_initial)
        super().__init__(eta=eta, min_budget=min_budget, mode=mode, sampler=sampler)
        self.n_initial = sampler.n_initial


@explains_init
class Hyperband(ASHA):
    """All brackets of Hyperband, run asynchronously, over random configurations.

    Sources: Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, "Hyperband: A Novel Bandit-Based Approach to
    Hyperparameter Optimization", JMLR 2018; :class:`ASHA` has the asynchronous form.

    Args:
        eta: Reduction factor, as in :class:`ASHA`. Default 3.
        min_budget: Fewest steps of the lowest rung, which may be up to ``eta`` times higher. Default 1.
        mode: ``promotion`` or ``stopping``, as in :class:`ASHA`.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer="hyperband", max_budget=27)
    """

    def __init__(self, *, eta: int = 3, min_budget: int = 1, mode: Mode | None = None) -> None:
        super().__init__(eta=eta, min_budget=min_budget, mode=mode, brackets=None, sampler=RandomSearch())


@explains_init
class BOHB(ASHA):
    """All brackets of Hyperband over the proposals of a density model.

    The model uses the results of the highest rung that has enough of them. It is Optuna's TPE (``pip install
    'maggy_like[optuna]'``).

    Source: Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018.

    Args:
        eta: Reduction factor, as in :class:`ASHA`. Default 3.
        min_budget: Fewest steps of the lowest rung, which may be up to ``eta`` times higher. Default 1.
        mode: ``promotion`` or ``stopping``, as in :class:`ASHA`.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer="bohb", max_budget=27)
    """

    def __init__(self, *, eta: int = 3, min_budget: int = 1, mode: Mode | None = None) -> None:
        sampler = HighestRung(TPE(n_startup_trials=1))
        super().__init__(eta=eta, min_budget=min_budget, mode=mode, brackets=None, sampler=sampler)


class HighestRung(Optimizer):
    """Show a sampler the results of a single budget: the highest one with enough of them.

    This is how BOHB uses a model of one budget. The share ``random_share`` of configurations is random, whatever the
    model says (BOHB's rho).
    """

    def __init__(self, sampler: Optimizer, random_share: float = 1 / 3) -> None:
        self.sampler = sampler
        self.random_share = random_share
        self._shown: tuple[History, int, int, History] | None = None

    def validate(self, problem: Problem) -> None:
        self.sampler.validate(problem)

    def ask(self, index: int, history: History) -> Answer:
        space, rng = history.problem.space, history.rng(index)
        enough = len(space.dimensions) + 2  # section 4 of the paper: N_min + 1, and a good one
        finite = Counter(seen.step for seen in history.observations if math.isfinite(seen.loss))
        steps = [step for step, count in finite.items() if count >= enough]
        if not steps or rng.random() < self.random_share:
            running = history.pending_keys()
            return untried(space, space.sample(rng), running, set(), rng)
        return self.sampler.ask(index, self._show(history, max(steps)))

    def _show(self, history: History, step: int) -> History:
        """Return the history at ``step``, as one that grows, so that a sampler may keep a cursor into it."""
        known = self._shown
        if known is None or known[0] is not history or known[1] != step:
            known = (history, step, 0, History(replace(history.problem, max_budget=step)))
        shown = known[3]
        new = history.observations[known[2] :]
        shown.observations.extend(seen for seen in new if seen.step == step or not math.isfinite(seen.loss))
        shown.pending = dict(history.pending)
        self._shown = (history, step, len(history.observations), shown)
        return shown
