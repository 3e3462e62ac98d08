"""Optuna's samplers as optimizers."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from optimizers.checks import COUNTING_SAMPLERS, explains_init, integer, short
from optimizers.core.base import History, Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.samplers.optuna_space import load_optuna
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from optimizers.samplers.optuna_study import StudyMirror

_TRIES = 3  # asks of a sampler that repeats itself, as genetic ones do, or that ignores the space's constraints
_APART = 20  # further asks that draw each parameter independently
_BY_CHANCE = 200  # random draws, if all configurations found so far are running
_LAST = 10_000  # random draws, if the constraints allowed none so far


@explains_init
class OptunaSampler(Optimizer):
    """Propose the configurations of one of Optuna's samplers.

    Each ask creates the sampler again, with a seed of that ask. It sees the search as an Optuna study: ended trials in
    the order of their ends, each with its configuration and its loss at the highest step, then the running ones. So
    ``constant_liar`` and Gaussian processes avoid running configurations. A failed trial has the worst loss seen. A
    resumed search therefore continues as if it had never stopped, which a sampler with state could not.

    ``GridSampler`` and ``QMCSampler`` are rejected, because they depend on how often they were asked. Use ``"grid"``
    and ``"sobol"``.

    Several objectives are supported if the sampler supports them (``NSGAIISampler``, ``NSGAIIISampler``,
    ``TPESampler``, ``GPSampler``, ``RandomSampler``). It sees all of them as losses to minimize.

    A ``constraints_func`` is called for each trial that ended with a value. It finds the configuration in
    ``trial.params`` and the metrics that ``train_fn`` returned or last reported in ``trial.user_attrs``. It is not
    called for a failed trial, which counts as failed. Constraints only guide the sampler, and the best trial may break
    one. So choose from ``result.to_pandas()``, or report ``inf`` or ``-inf`` (the worst value) for a trial that breaks
    one.

    ``PartialFixedSampler`` takes values of the search space. ``BruteForceSampler`` ends the search when all
    configurations are tried. Without ``n_trials`` and ``timeout``, it tries all of them.

    CMA-ES and the genetic samplers keep their state in the trials' system attributes. They see each trial as if it had
    been asked for when the trial before it ended: a generation is full when as many trials have ended as its population
    has members. Use a population that is not smaller than the number of workers, or else generations learn from much
    earlier ones.

    A conditional parameter is only asked for if it is active. Not every sampler models conditions;
    ``TPESampler(multivariate=True, group=True)`` does. The sampler sees listed values and a float's steps as indexes.
    Earlier searches (``Problem.earlier``) are not used.

    Args:
        sampler: A function that takes a seed and returns a new sampler at each call.

    Raises:
        OptimizerError: ``sampler`` is not a function.

    Example:
        >>> from optuna.samplers import CmaEsSampler
        >>> result = lagom(train_fn, space, optimizer=OptunaSampler(lambda seed: CmaEsSampler(seed=seed, popsize=16)))
    """

    multi_objective = True  # of most samplers; validate() raises for the others

    def __init__(self, sampler: Callable[[int], BaseSampler]) -> None:
        if isinstance(sampler, type) or not callable(sampler):
            kind: type = sampler if isinstance(sampler, type) else type(sampler)
            name = "TPESampler" if kind.__module__ == "builtins" else kind.__name__  # it may not be a sampler
            raise OptimizerError(
                f"sampler must be a function that takes a seed and returns a sampler, got {short(sampler)}; "
                f"use lambda seed: {name}(seed=seed)"
            )
        try:
            inspect.signature(sampler).bind(0)
        except TypeError as error:
            raise OptimizerError(
                f"sampler must take a seed ({error}); use lambda seed: TPESampler(seed=seed)"
            ) from None
        except ValueError:  # a built-in function without a signature
            pass
        self.sampler = sampler
        self._mirror: StudyMirror | None = None

    def validate(self, problem: Problem) -> None:
        """Check that the sampler can be created and used.

        Raises:
            OptimizerError: Optuna is missing, the function does not return a new sampler at each call, or the sampler
                needs information that it would not get.
        """
        if importlib.util.find_spec("optuna") is None:
            raise OptimizerError(
                f"{type(self).__name__} needs Optuna; install it with: pip install 'maggy_like[optuna]'"
            )
        load_optuna()
        from optuna.samplers import BaseSampler

        first, second = self._make(0), self._make(0)
        if not isinstance(first, BaseSampler):
            raise OptimizerError(
                f"sampler(seed) must return a sampler of Optuna, got {short(first)}; use lambda seed: "
                "TPESampler(seed=seed)"
            )
        if first is second:
            kind = type(first).__name__
            raise OptimizerError(
                f"sampler(seed) must return a new sampler at each call, got one {kind} twice; use lambda seed: "
                f"{kind}(seed=seed)"
            )
        from optimizers.samplers.optuna_study import check_fixed, innermost, is_exhaustive

        inner = innermost(first)
        if (name := type(inner).__name__) in COUNTING_SAMPLERS:
            raise OptimizerError(f"{name} depends on how often it was asked; use optimizer={COUNTING_SAMPLERS[name]}")
        if getattr(inner, "_with_margin", False):
            # It stores the point that was asked for, which is not the one whose result is entered.
            raise OptimizerError(f"with_margin of {name} must be False, got True; remove with_margin=True")
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
            return None  # validate() raises
        load_optuna()
        from optimizers.samplers.optuna_study import is_exhaustive

        return space.size if is_exhaustive(self._make(0)) else None

    def _check_several(self, problem: Problem) -> None:
        """Ask once, because samplers for one objective only raise then."""
        try:
            self.ask(0, History(problem))
        except ValueError as error:
            name = type(self._make(0)).__name__
            raise OptimizerError(
                f"{name} supports one objective, got {problem.n_objectives}; use NSGAIISampler or TPESampler, "
                f"or optimize a weighted sum ({error})"
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
        running = history.pending_keys()
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
                    tried.add(found)  # an exhaustive sampler does not repeat it
                elif found not in tried or (len(tried) >= size and found not in running):
                    return proposal
                elif second_best is None or space.key(second_best) in running:
                    second_best = proposal
        if second_best is None:
            raise OptimizerError(
                f"the constraints reject all {n:,} proposals of {type(self._make(0)).__name__} in "
                "the search space; relax them, or fix other values"
            )
        return second_best

    def _samplers(self, space: SearchSpace, rng: np.random.Generator) -> Iterator[BaseSampler]:
        """Yield samplers to draw from until a proposal is acceptable. All fix the same parameters."""
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
    """Propose values that are more frequent among good trials (tree-structured Parzen estimators, by Optuna).

    A proposal takes milliseconds, even after hundreds of trials. All kinds of parameters and conditions are supported;
    parameters that are active together are modelled together. Running trials count as bad, so that workers do not try
    the same region.

    Sources: Bergstra, Bardenet, Bengio and Kegl, "Algorithms for Hyper-Parameter Optimization", 2011; Watanabe,
    "Tree-Structured Parzen Estimator: Understanding Its Algorithm Components", 2023.

    Args:
        n_startup_trials: Number of results before the model is used. Until then, configurations are random. Default 10.
        n_ei_candidates: Number of points that are drawn and compared per proposal. Default 24.
        multivariate: If True (the default), model parameters jointly, or else each separately.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer="tpe", n_trials=30)
    """

    def __init__(self, n_startup_trials: int = 10, n_ei_candidates: int = 24, multivariate: bool = True) -> None:
        if not isinstance(multivariate, bool):
            raise OptimizerError(f"multivariate must be True or False, got {multivariate!r}; use multivariate=True")
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
