"""Bayesian optimization with the Gaussian process of scikit-optimize."""

from __future__ import annotations

import heapq
import importlib.util
import math
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np

from optimizers.checks import did_you_mean, explains_init, integer
from optimizers.core.base import History, Observation, Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.samplers.model_based import clipped, untried
from optimizers.samplers.non_adaptive import Sobol
from optimizers.samplers.silence import without_warnings
from optimizers.space import Config
from optimizers.space.domains import Choice, Domain, Integer, cell, middle
from optimizers.space.search_space import SearchSpace

Acquisition = Literal["EI", "LCB", "PI"]

_MODEL_SIZE = 150  # the cost of a fit grows with the cube of its points
_CANDIDATES = 2000  # random points at which the acquisition is compared before it is polished


@explains_init
class SkoptSearch(Optimizer):
    """Model the loss with scikit-optimize's Gaussian process and propose likely improvements.

    Running configurations enter the model with an assumed loss, the *constant liar* of Ginsbourger, Le Riche and
    Carraro, "Kriging is Well-Suited to Parallelize Optimization", 2010, section 4.2. This loss is the mean of the
    observed ones. It removes the uncertainty where a worker is already looking, so the next proposal is elsewhere. The
    best loss would attract proposals to that region, and the worst would ban its surroundings.

    For each trial, the loss at the highest step counts. An inactive parameter is at 0.5 of its axis. With more than 150
    ended trials, the model uses 150: the newest half, and the best of the others.

    Sources: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998 (EI);
    Snoek, Larochelle and Adams, "Practical Bayesian Optimization of Machine Learning Algorithms", 2012.

    Args:
        n_initial: Number of trials with a finite loss before the model is used. Until then, Sobol' points are proposed.
            Default 10.
        acquisition: ``EI`` (expected improvement, the default), ``LCB`` (lower confidence bound) or ``PI`` (probability
            of improvement).

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer=SkoptSearch(n_initial=8), n_trials=12)
    """

    def __init__(self, n_initial: int = 10, acquisition: Acquisition = "EI") -> None:
        if acquisition not in (known := get_args(Acquisition)):
            near = did_you_mean(str(acquisition).upper(), known)
            raise OptimizerError(f"acquisition must be one of {', '.join(known)}, got {acquisition!r}{near}")
        self.n_initial = integer("n_initial", n_initial, least=1)
        self.acquisition = acquisition
        self._initial = Sobol()

    def validate(self, problem: Problem) -> None:
        if importlib.util.find_spec("skopt") is None:
            raise OptimizerError("SkoptSearch needs scikit-optimize; install it with: pip install 'maggy_like[skopt]'")

    def ask(self, index: int, history: History) -> Config:
        space, rng = history.problem.space, history.rng(index)
        observed = _newest_by_trial(history.observations)
        # A promoted trial is pending too, and its loss so far is a better guess than the mean.
        pending = [config for trial, config in history.pending.items() if trial not in observed]
        if sum(math.isfinite(seen.loss) for seen in observed.values()) < self.n_initial:
            proposal = self._initial.ask(index, history)
        else:
            proposal = self._from_model(space, list(observed.values()), pending, rng)
        running = history.pending_keys()
        ended = {space.key(seen.config) for seen in observed.values()}
        return untried(space, proposal, running, ended, rng)

    def _from_model(
        self, space: SearchSpace, observed: list[Observation], pending: list[Config], rng: np.random.Generator
    ) -> Config:
        axes = [i for i, name in enumerate(space.dimensions) if space.domains[name].size != 1]
        if not axes:
            return space.sample(rng)
        import skopt  # takes seconds, which only this optimizer should cost
        from skopt.utils import cook_estimator

        domains = [space.domains[space.dimensions[i]] for i in axes]
        dimensions = [_dimension(domain) for domain in domains]
        observed = _most_telling(observed)
        losses = clipped(np.array([seen.loss for seen in observed])).tolist()
        losses += [sum(losses) / len(losses)] * len(pending)
        configs = [seen.config for seen in observed] + pending
        units = [space.to_unit(config)[axes].tolist() for config in configs]
        points = [[_to_axis(domain, u) for domain, u in zip(domains, unit, strict=True)] for unit in units]
        seed = int(rng.integers(2**31))
        with without_warnings():  # a fit that stopped early is good enough; ask() replaces repeats
            model = skopt.Optimizer(
                dimensions,
                cook_estimator("GP", space=dimensions, random_state=seed, n_restarts_optimizer=1),
                n_initial_points=0,
                acq_func=self.acquisition,
                acq_optimizer_kwargs={"n_points": _CANDIDATES, "n_restarts_optimizer": 3},
                random_state=seed,
            )
            model.tell(points, losses)
            best = model.ask()
        point = np.full(len(space.dimensions), 0.5)
        point[axes] = [_from_axis(domain, value) for domain, value in zip(domains, best, strict=True)]
        return space.from_unit(point)


def _newest_by_trial(observations: Iterable[Observation]) -> dict[int, Observation]:
    """Return the observation of the highest step of each trial, in order of the trials' first results."""
    newest: dict[int, Observation] = {}
    for seen in observations:
        if seen.trial not in newest or seen.step >= newest[seen.trial].step:
            newest[seen.trial] = seen
    return newest


def _rank(seen: Observation) -> float:
    return seen.loss if math.isfinite(seen.loss) else math.inf


def _most_telling(observed: list[Observation]) -> list[Observation]:
    if len(observed) <= _MODEL_SIZE:
        return observed
    newest, older = observed[-_MODEL_SIZE // 2 :], observed[: -_MODEL_SIZE // 2]
    return heapq.nsmallest(_MODEL_SIZE // 2, older, key=_rank) + newest


def _dimension(domain: Domain) -> Any:
    """Return the model's axis: categories for a choice, a count for other evenly spaced values, or else [0, 1]."""
    from skopt.space import Categorical, Integer, Real

    if (n := _evenly_spaced(domain)) is None:
        return Real(0.0, 1.0)
    return Categorical(list(range(n))) if isinstance(domain, Choice) else Integer(0, n - 1)


def _to_axis(domain: Domain, u: float) -> float:
    return u if (n := _evenly_spaced(domain)) is None else cell(u, n)


def _from_axis(domain: Domain, value: float) -> float:
    n = _evenly_spaced(domain)
    return min(max(float(value), 0.0), 1.0) if n is None else middle(int(value), n)


def _evenly_spaced(domain: Domain) -> int | None:
    """Return the number of values if they are evenly spaced in the unit interval, or None."""
    return None if isinstance(domain, Integer) and domain.log else domain.size
