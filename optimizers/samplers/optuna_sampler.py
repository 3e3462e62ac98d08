"""Optuna's samplers as optimizers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from optimizers.checks import explains_init, integer
from optimizers.core.base import History, Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from optimizers.samplers.optuna_study import StudyMirror

_INDEXED = {"QMCSampler": "sobol", "GridSampler": "grid"}
"""Samplers that count their asks in Optuna's own study, and our optimizer that does the same."""

_TRIES = 3  # asks of a sampler that repeats itself, as genetic ones do, or that ignores the space's constraints
_APART = 20  # further asks that draw each parameter independently
_BY_CHANCE = 200  # random draws, where all configurations found so far are running
_LAST = 10_000  # random draws, where the constraints allowed none of the configurations so far


@explains_init
class OptunaSampler(Optimizer):
    """Proposes what one of Optuna's samplers does.

    The sampler is made anew for each ask, from a seed of that ask, and sees the search as an Optuna
    study: ended trials in the order in which they ended, each with its own configuration and its loss
    at the highest step; then those that run, so that ``constant_liar`` and Gaussian processes keep
    away from them. A failed trial has the worst loss seen. So a resumed search goes on as if it had
    never stopped, which a sampler with a state of its own could not.

    Several objectives are served where the sampler serves them (``NSGAIISampler``, ``NSGAIIISampler``,
    ``TPESampler``, ``GPSampler``, ``RandomSampler``): it sees all of them as losses, to be minimised. A
    ``constraints_func`` is called for each trial that ended with a value. It finds the configuration in
    ``trial.params`` and the metrics that ``train_fn`` returned or last reported in ``trial.user_attrs``; a
    failed trial counts as failed then, since it has none. It guides the sampler alone: the best of the result may break
    a constraint, so choose from ``result.to_pandas()``, or report what breaks one as ``inf`` or ``-inf``, the worst.

    ``PartialFixedSampler`` takes its values as they stand in the search space. ``BruteForceSampler`` ends the
    search when all configurations are tried; it tries all of them unless ``n_trials`` or ``timeout`` is given.

    Samplers that keep their state in the trials' system attributes, CMA-ES and the genetic ones, find each
    trial with the attributes of one that was asked for when the trial before it ended: a generation is full
    when as many trials have ended as its population has. Their population should not be smaller than the
    number of workers, else generations learn from points of much earlier ones.

    Conditional parameters are asked for when they are active; not every
    sampler models them (``TPESampler(multivariate=True, group=True)`` does). Listed values and a float's steps are
    indexes to the sampler. Earlier searches (``Problem.earlier``) are not used.

    Args:
        sampler: A function that takes a seed and makes a sampler, a new one at each call.

    Raises:
        OptimizerError: It is not a function.

    Example:
        >>> from optuna.samplers import CmaEsSampler
        >>> lagom(train_fn, space, optimizer=OptunaSampler(lambda seed: CmaEsSampler(seed=seed, popsize=16)))
    """

    multi_objective = True  # of most samplers; validate() raises where it is not so

    def __init__(self, sampler: Callable[[int], BaseSampler]) -> None:
        if isinstance(sampler, type) or not callable(sampler):
            kind: type = sampler if isinstance(sampler, type) else type(sampler)
            name = "TPESampler" if kind.__module__ == "builtins" else kind.__name__  # what was given may be no sampler
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
                sampler needs information that it would not get.
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
        from optimizers.samplers.optuna_study import check_fixed, innermost, is_exhaustive

        inner = innermost(first)
        if (name := type(inner).__name__) in _INDEXED:
            raise OptimizerError(f"{name} goes by how often it was asked; use optimizer={_INDEXED[name]!r}")
        if getattr(inner, "_with_margin", False):
            # It takes note of the point that was asked for, which is not the one whose result is entered.
            raise OptimizerError(f"{name} with with_margin=True pairs results with other points; leave with_margin out")
        check_fixed(first, problem.space)
        if is_exhaustive(first) and problem.space.size is None:
            raise OptimizerError(
                f"{name} tries all configurations, and this space has infinitely many; give each "
                "Float a step, or use optimizer='random'"
            )
        if problem.n_objectives > 1:
            self._check_several(problem)

    def size(self, space: SearchSpace) -> int | None:
        if importlib.util.find_spec("optuna") is None:
            return None  # validate() says so
        from optimizers.samplers.optuna_study import is_exhaustive

        return space.size if is_exhaustive(self._make(0)) else None

    def _check_several(self, problem: Problem) -> None:
        """Ask once: only then do samplers of one objective raise."""
        try:
            self.ask(0, History(problem))
        except ValueError as error:
            name = type(self._make(0)).__name__
            raise OptimizerError(
                f"{name} serves one objective, and there are {problem.n_objectives}; use NSGAIISampler or TPESampler, "
                f"or optimise one number that weighs them ({error})"
            ) from error

    def ask(self, index: int, history: History) -> Config | None:
        from optimizers.samplers.optuna_space import quiet
        from optimizers.samplers.optuna_study import (
            StudyMirror,
            is_exhaustive,  # with Optuna, a second that only this costs
        )

        space, rng = history.problem.space, history.rng(index)
        if self._mirror is None or not self._mirror.serves(history):
            self._mirror = StudyMirror(history, self._sampler_for(space, history.rng(0)))
        running = {space.key(config) for config in history.pending.values()}
        second_best: Config | None = None  # tried before, but not running if possible
        with quiet(), self._mirror.asked(history) as draw:
            tried = running | self._mirror.keys
            size = math.inf if space.size is None else space.size
            for n, sampler in enumerate(self._samplers(space, rng)):
                if second_best is not None and n >= _TRIES + _APART:
                    others = len(running) < size and n < _TRIES + _APART + _BY_CHANCE  # that do not run
                    if not others or space.key(second_best) not in running:
                        break
                proposal = draw(sampler)
                found = space.key(proposal)
                if is_exhaustive(sampler) and found in tried:
                    return None
                if not space.allows(proposal):
                    self._mirror.refuse(proposal)
                    tried.add(found)  # a sampler that goes through all does not come back to it
                elif found not in tried or (len(tried) >= size and found not in running):
                    return proposal
                elif second_best is None or space.key(second_best) in running:
                    second_best = proposal
        if second_best is None:
            raise OptimizerError(
                f"nothing that {type(self._make(0)).__name__} proposed in {n:,} tries is allowed by the constraints of "
                "the search space; loosen them, or fix other values"
            )
        return second_best

    def _samplers(self, space: SearchSpace, rng: np.random.Generator) -> Iterator[BaseSampler]:
        """Samplers to draw from in turn until a proposal is acceptable; all fix the same parameters."""
        from optuna.samplers import PartialFixedSampler, RandomSampler

        from optimizers.samplers.optuna_study import Independent, fixed_values, is_exhaustive

        yield (first := self._sampler_for(space, rng))
        while is_exhaustive(first):
            yield self._sampler_for(space, rng)
        for _ in range(_TRIES - 1):
            yield self._sampler_for(space, rng)
        for _ in range(_APART):
            yield Independent(self._sampler_for(space, rng))
        for _ in range(_LAST):
            yield PartialFixedSampler(fixed_values(first), RandomSampler(seed=int(rng.integers(2**31))))

    def _sampler_for(self, space: SearchSpace, rng: np.random.Generator) -> BaseSampler:
        from optimizers.samplers.optuna_study import translate_fixed

        sampler = self._make(int(rng.integers(2**31)))
        translate_fixed(sampler, space)
        return sampler

    def _make(self, seed: int) -> BaseSampler:
        from optimizers.samplers.optuna_space import quiet

        with quiet():  # many of Optuna's options warn that they may change
            return self.sampler(seed)


@explains_init
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
        if not isinstance(multivariate, bool):
            raise OptimizerError(f"multivariate must be True or False, got {multivariate!r}")
        self.n_startup_trials = integer("n_startup_trials", n_startup_trials, least=1)
        self.n_ei_candidates = integer("n_ei_candidates", n_ei_candidates, least=1)
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
