"""Optuna's samplers as optimizers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from optimizers.base import History, Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.novelty import key, untried
from optimizers.trial import Config

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from optimizers.adapters.optuna_trials import StudyMirror

_INDEXED = {"QMCSampler": "sobol", "GridSampler": "grid"}
"""Samplers that count how often they were asked, which Optuna writes into its own study; use ours by name."""

_TRIES = 3  # of a sampler that repeats itself, as genetic ones do, or knows no constraint, before chance takes over


class OptunaSampler(Optimizer):
    """Proposes what one of Optuna's samplers does.

    The sampler is made anew for each ask, from a seed of that ask, and sees the search as an Optuna
    study: ended trials in the order in which they ended, each with its own configuration and its loss
    at the highest step; then those that run, so that ``constant_liar`` and Gaussian processes keep
    away from them. A failed trial has the worst loss seen. So a resumed search goes on as if it had
    never stopped, which a sampler with a state of its own could not.

    Samplers that keep a state in marks on the trials, CMA-ES and the genetic ones, find each trial
    marked as if it had been asked for when the one before it ended: a generation is full when as many
    trials have ended as its population has. Their population should not be smaller than the gang,
    else generations learn from points of long past ones.

    Conditional parameters are asked for when they are active; whether a sampler models them is its own
    affair (``TPESampler(multivariate=True, group=True)`` does). Listed values and a float's steps are
    indexes to the sampler. Earlier searches (``Problem.earlier``) are not used.

    Args:
        sampler: A function that takes a seed and makes a sampler, a new one at each call.

    Raises:
        OptimizerError: It is not a function.

    Example:
        >>> from optuna.samplers import CmaEsSampler
        >>> lagom(train_fn, space, optimizer=OptunaSampler(lambda seed: CmaEsSampler(seed=seed, popsize=16)))
    """

    def __init__(self, sampler: Callable[[int], BaseSampler]) -> None:
        if isinstance(sampler, type) or not callable(sampler):
            name = sampler.__name__ if isinstance(sampler, type) else type(sampler).__name__
            raise OptimizerError(
                f"sampler must be a function that takes a seed and makes a sampler, got {sampler!r}; "
                f"use lambda seed: {name}(seed=seed)"
            )
        self.sampler = sampler
        self._mirror: StudyMirror | None = None

    def validate(self, problem: Problem) -> None:
        """Raise if the sampler cannot be made or served.

        Raises:
            OptimizerError: Optuna is missing, the function does not make a new sampler at each call, or the
                sampler would not be told what it goes by.
        """
        if importlib.util.find_spec("optuna") is None:
            raise OptimizerError(
                f"{type(self).__name__} needs Optuna; install it with: pip install 'maggy_like[optuna]'"
            )
        from optuna.samplers import BaseSampler

        first, second = self._make(0), self._make(0)
        if not isinstance(first, BaseSampler):
            raise OptimizerError(f"sampler(seed) must make a sampler of Optuna, got {first!r}")
        if first is second:
            raise OptimizerError(f"sampler(seed) gives the same {first!r} twice; make a new one at each call")
        if (name := type(_inner(first)).__name__) in _INDEXED:
            raise OptimizerError(f"{name} goes by how often it was asked; use optimizer={_INDEXED[name]!r}")
        if getattr(_inner(first), "_with_margin", False):
            # It takes note of the point that was asked for, which is not the one whose result is entered.
            raise OptimizerError(f"{name} with with_margin=True pairs results with other points; leave with_margin out")

    def ask(self, index: int, history: History) -> Config:
        from optimizers.adapters.optuna_space import quiet  # with Optuna, a second that only this should cost
        from optimizers.adapters.optuna_trials import StudyMirror

        space, rng = history.problem.space, history.rng(index)
        if self._mirror is None or not self._mirror.serves(history):
            marker = self._make(int(history.rng(0).integers(2**31)))
            self._mirror = StudyMirror(history, marker if _leaves_marks(marker) else None)
        running = {key(space, config) for config in history.pending.values()}
        ended = self._mirror.keys
        for _ in range(_TRIES):
            with quiet():
                proposal = self._mirror.ask(self._make(int(rng.integers(2**31))), history)
            new = (found := key(space, proposal)) not in running and found not in ended
            if new and space.allows(proposal):
                return proposal
        return untried(space, proposal, running, ended, rng)

    def _make(self, seed: int) -> BaseSampler:
        from optimizers.adapters.optuna_space import quiet

        with quiet():  # many of Optuna's options warn that they may change
            return self.sampler(seed)


class TPE(OptunaSampler):
    """Tree-structured Parzen estimators, by Optuna: proposes what the best trials have more often than others.

    Takes milliseconds at hundreds of trials, any kind of parameter, and conditions: parameters that are
    active together are modelled together. What runs counts as bad, so that workers do not crowd.

    Sources: Bergstra, Bardenet, Bengio and Kegl, "Algorithms for Hyper-Parameter Optimization", 2011;
    Watanabe, "Tree-Structured Parzen Estimator: Understanding Its Algorithm Components", 2023.

    Args:
        n_startup_trials: Results before the model is used; until then, random configurations.
        n_ei_candidates: Points that are drawn and compared at each ask.
        multivariate: Model parameters jointly; False models each alone.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, optimizer="tpe", n_trials=100)
    """

    def __init__(self, n_startup_trials: int = 10, n_ei_candidates: int = 24, multivariate: bool = True) -> None:
        for name, value in (("n_startup_trials", n_startup_trials), ("n_ei_candidates", n_ei_candidates)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptimizerError(f"{name} must be an integer of at least 1, got {value!r}")
        if not isinstance(multivariate, bool):
            raise OptimizerError(f"multivariate must be True or False, got {multivariate!r}")
        self.n_startup_trials = n_startup_trials
        self.n_ei_candidates = n_ei_candidates
        self.multivariate = multivariate
        super().__init__(self._sampler)

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import TPESampler

        return TPESampler(
            n_startup_trials=self.n_startup_trials,
            n_ei_candidates=self.n_ei_candidates,
            multivariate=self.multivariate,
            group=self.multivariate,
            constant_liar=True,
            seed=seed,
        )


def _inner(sampler: BaseSampler) -> BaseSampler:
    """The sampler itself, or the one that a ``PartialFixedSampler`` wraps."""
    inner: BaseSampler = getattr(sampler, "_base_sampler", sampler)
    return inner


def _leaves_marks(sampler: BaseSampler) -> bool:
    """Whether the sampler's state lies in marks on the trials."""
    from optuna.samplers import BaseGASampler, CmaEsSampler

    return isinstance(_inner(sampler), (CmaEsSampler, BaseGASampler))
