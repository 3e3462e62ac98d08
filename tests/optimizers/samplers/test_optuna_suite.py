"""Optuna's own conformance suites over our optimizers, each behind the interface of Optuna's samplers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import intersection_search_space
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)
from optuna.trial import FrozenTrial, TrialState

from optimizers.core.base import History, Observation, Optimizer, Pending, Problem
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import RandomSearch, Sobol
from optimizers.samplers.optuna_sampler import TPE
from optimizers.schedulers.asha import ASHA
from optimizers.space import Config
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer
from optimizers.space.search_space import SearchSpace

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]


class OurSampler(BaseSampler):
    """Answers as one of our optimizers does, given the study's trials as a search's history."""

    def __init__(self, make: Callable[[], Optimizer]) -> None:
        self._make = make

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        self._make().check(Problem(SearchSpace(), n_objectives=len(study.directions)))
        known = intersection_search_space(study.get_trials(deepcopy=False))
        return {name: distribution for name, distribution in known.items() if not distribution.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._ask(study, trial, search_space) if search_space else {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._ask(study, trial, {param_name: param_distribution})[param_name]

    def _ask(self, study: optuna.Study, trial: FrozenTrial, dims: dict[str, BaseDistribution]) -> Config:
        space = SearchSpace({name: domain(distribution) for name, distribution in dims.items()})
        history = History(Problem(space, n_objectives=len(study.directions)))
        optimizer = self._make()
        optimizer.check(history.problem)
        signs = [-1.0 if way is optuna.study.StudyDirection.MAXIMIZE else 1.0 for way in study.directions]
        for other in study.get_trials(deepcopy=False):
            config = {name: other.params.get(name) for name in dims}
            if other.number == trial.number or not all(space.domains[n].contains(v) for n, v in config.items()):
                continue
            if other.state is TrialState.RUNNING:
                history.apply(Pending(other.number, config))
            elif other.state.is_finished():
                values = other.values or [math.nan] * len(signs)
                losses = tuple(sign * value for sign, value in zip(signs, values, strict=True))
                several = losses if len(losses) > 1 else ()
                history.apply(Observation(other.number, space.validate(config), 1, losses[0], losses=several))
        answer = optimizer.ask(trial.number, history)
        assert isinstance(answer, dict)
        return answer


def domain(distribution: BaseDistribution) -> Domain:
    """The domain with the values of an Optuna distribution."""
    match distribution:
        case CategoricalDistribution(choices=choices):
            return Choice(choices)
        case FloatDistribution(low=low, high=high) | IntDistribution(low=low, high=high) if low == high:
            return Constant(low)
        case FloatDistribution(low=low, high=high, log=log, step=step):
            return Float(low, high, log=log, step=step)
        case IntDistribution(low=low, high=high, log=log, step=step):
            return Integer(low, high, log=log, step=step if step > 1 else None)
    raise AssertionError(distribution)


def ours(make: Callable[[], Optimizer]) -> Callable[[], BaseSampler]:
    return lambda: OurSampler(make)


LEARNING: dict[str, Callable[[], Optimizer]] = {
    "bayesian": lambda: BayesianSearch(n_initial=3),
    "tpe": lambda: TPE(n_startup_trials=3),
}
EVERY: dict[str, Callable[[], Optimizer]] = {"random": RandomSearch, "sobol": Sobol}
"""Quick ones: the suite asks each some 2,000 times."""


@pytest.fixture(params=EVERY)
def any_of_ours(request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
    return ours(EVERY[request.param])


class TestBasic(BasicSamplerTestCase):
    @pytest.fixture
    def sampler(self, any_of_ours: Callable[[], BaseSampler]) -> Callable[[], BaseSampler]:
        return any_of_ours


class TestRelative(RelativeSamplerTestCase):
    @pytest.fixture(params=LEARNING)
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
        return ours(LEARNING[request.param])


class TestSeveralObjectives(MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self, any_of_ours: Callable[[], BaseSampler]) -> Callable[[], BaseSampler]:
        return any_of_ours


class TestOneObjective(SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return ours(ASHA)
