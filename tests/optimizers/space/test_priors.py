from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scipy.stats import kstest, truncnorm

from optimizers.core.study import Study
from optimizers.errors import SearchSpaceError
from optimizers.samplers.non_adaptive import RandomSearch, Sobol
from optimizers.space import Config
from optimizers.space.domains import Choice, Constant, Dimension, Float, Integer, Ordinal, domain_from_json
from optimizers.space.priors import NO_PRIOR, UNIFORM_SHARE, WEIGHTS, Bell, Favourite, Prior
from optimizers.space.search_space import SearchSpace

DOMAINS: list[Dimension] = [
    Float(1e-4, 1e-1, log=True, prior=1e-3),
    Float(0, 1, step=0.25, prior=0.5, confidence="low"),
    Integer(1, 64, log=True, prior=1, confidence="high"),
    Choice(["sgd", "adam"], prior="adam"),
    Choice([True, False], prior=False, confidence="high"),
    Choice([None, 1, True], prior=None),
    Ordinal([16, 32, 64], prior=64, confidence="low"),
]
PRIORS = [Bell(0.0, 0.125), Bell(1.0, 0.5), Bell(0.4, 0.25), Favourite(0, 1, 4.0), Favourite(2, 5, 8.0)]

SPACE = SearchSpace(
    lr=Float(1e-4, 1e-1, log=True, prior=1e-3, confidence="high"),
    act=["relu", "gelu", "silu"],
    opt=Choice(["sgd", "adam"], prior="adam"),
    momentum=Float(0, 1, prior=0.9, when={"opt": "sgd"}),
    kind=Constant("net"),
    beta=Float(0, 1, prior=0.9, when={"kind": "net", "opt": "adam"}),
)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_priors_travel_as_json_pickle_and_repr(domain: Dimension) -> None:
    copy = domain_from_json(json.loads(json.dumps(domain.to_json())))
    assert copy == domain == pickle.loads(pickle.dumps(domain)) == eval(repr(domain))
    assert copy.to_json() == domain.to_json()
    assert isinstance(copy, Dimension)
    assert copy.density == domain.density is not None


def test_no_prior_leaves_no_trace() -> None:
    assert Float(0, 1).to_json() == {"type": "float", "low": 0.0, "high": 1.0}
    assert Float(0, 1).density is None
    assert Choice([None, 1]).density is None
    assert Choice([None, 1]) != Choice([None, 1], prior=None)
    assert pickle.loads(pickle.dumps(NO_PRIOR)) is NO_PRIOR


def test_a_prior_is_spelled_as_the_domain_spells_it() -> None:
    assert repr(Float(0, 2, prior=np.int64(1))) == "Float(0.0, 2.0, prior=1.0)"
    data = {"type": "integer", "low": 1, "high": 9, "prior": 3.0, "confidence": "medium"}
    assert domain_from_json(data).to_json() == {"type": "integer", "low": 1, "high": 9, "prior": 3}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(0, 1, prior=2), r"prior must be a value of the domain: 2 is not in Float\(0.0, 1.0"),
        (lambda: Float(0, 1, step=0.5, prior=0.4), "the nearest is 0.5"),
        (lambda: Float(0, 1, prior=None), "None is not in"),  # type: ignore[arg-type]
        (lambda: Integer(1, 9, prior=2.5), "2.5 is not in"),  # type: ignore[arg-type]
        (lambda: Choice(["relu", "gelu"], prior="relo"), "did you mean 'relu'"),
        (lambda: Float(0, 1, prior=0.5, confidence="hihg"), "'hihg' .did you mean 'high'"),  # type: ignore[arg-type]
        (lambda: Float(0, 1, prior=0.5, confidence=3), "'low', 'medium', 'high', got 3"),  # type: ignore[arg-type]
        (lambda: Float(0, 1, confidence="high"), "confidence='high' needs a prior; use prior"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message):
        make()


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_a_density_has_the_mass_one_and_its_own_quantiles(prior: Prior) -> None:
    middles = (np.arange(100_000) + 0.5) / 100_000
    density = np.exp(prior.log_density(middles))
    assert density.mean() == pytest.approx(1.0, abs=1e-6)
    for p in (0.0, 0.1, 0.5, 0.97, 1 - 1e-12):
        below = middles < prior.quantile(p)
        assert 0.0 <= prior.quantile(p) <= 1.0
        if isinstance(prior, Bell):
            assert density[below].sum() / 100_000 == pytest.approx(p, abs=1e-4)


def test_the_bell_is_the_truncated_normal_of_the_books() -> None:
    reference = truncnorm(-0.4 / 0.25, 0.6 / 0.25, loc=0.4, scale=0.25)
    units = np.linspace(0, 1, 11)
    assert Bell(0.4, 0.25).log_density(units) == pytest.approx(reference.logpdf(units))
    assert [Bell(0.4, 0.25).quantile(p) for p in units[:-1]] == pytest.approx(reference.ppf(units[:-1]), abs=1e-9)


def test_a_favourite_is_so_many_times_as_likely_as_any_other() -> None:
    prior = Choice(list("abcd"), prior="b", confidence="low").density
    assert prior is not None
    counts = np.bincount([int(prior.quantile((i + 0.5) / 500) * 4) for i in range(500)])
    assert counts.tolist() == [100, 200, 100, 100]
    density = np.exp(prior.log_density(np.array([0.125, 0.375, 0.625, 1.0])))
    assert density == pytest.approx([0.8, 1.6, 0.8, 0.8])


def test_what_has_an_order_is_likelier_near_its_prior() -> None:
    prior = Ordinal([1, 2, 3, 4], prior=2).density
    assert prior is not None
    low, centre, next_to, far = prior.log_density(np.array([0.125, 0.375, 0.625, 0.875]))
    assert centre > low == pytest.approx(next_to)
    assert next_to > far


# -- of a whole space -------------------------------------------------------------------------------


def drawn(space: SearchSpace, n: int = 2000) -> list[Config]:
    rng = np.random.default_rng(0)
    return [space.sample(rng) for _ in range(n)]


def test_draws_without_a_prior_are_what_they_were() -> None:
    space = SearchSpace(a=Float(0, 1), b=Float(0, 1))
    rng = np.random.default_rng(5)
    expected = [space.from_unit(rng.random(2)) for _ in range(3)]
    rng = np.random.default_rng(5)
    assert [space.sample(rng) for _ in range(3)] == expected
    assert not space.has_prior
    assert space.prior_config is None
    assert space.log_prior(np.zeros((3, 2))).tolist() == [0.0] * 3


def test_draws_follow_the_priors_and_shut_nothing_out() -> None:
    configs = drawn(SPACE)
    share = np.mean([config["opt"] == "adam" for config in configs])
    weight = WEIGHTS["medium"]
    assert share == pytest.approx(UNIFORM_SHARE / 2 + (1 - UNIFORM_SHARE) * weight / (1 + weight), abs=0.03)
    acts = [config["act"] for config in configs]
    assert acts.count("relu") / len(acts) == pytest.approx(1 / 3, abs=0.04)
    far = np.mean([config["lr"] > 3e-2 for config in configs])  # four standard deviations off
    assert far == pytest.approx(UNIFORM_SHARE * (1 - math.log(300) / math.log(1000)), abs=0.02)


def test_the_log_prior_is_the_density_of_the_draws() -> None:
    space = SearchSpace(x=Float(0, 1, prior=0.2, confidence="high"))
    edges = np.linspace(0, 1, 2001)
    masses = np.exp(space.log_prior((edges[:-1, None] + edges[1:, None]) / 2)) / 2000
    assert masses.sum() == pytest.approx(1.0, abs=1e-5)
    cumulated = np.concatenate([[0.0], np.cumsum(masses)])
    fit = kstest([config["x"] for config in drawn(space)], lambda x: np.interp(x, edges, cumulated))
    assert fit.pvalue > 0.01
    assert space.log_prior([[1.0]]) == pytest.approx([math.log(UNIFORM_SHARE)], abs=1e-6)


def test_a_prior_under_a_condition_counts_where_it_is_active() -> None:
    config = {"lr": 1e-3, "act": "relu", "opt": "adam", "kind": "net", "beta": 0.9}
    point = SPACE.to_unit(config)
    names = SPACE.dimensions
    moved = point.copy()
    moved[names.index("momentum")] = 0.1
    off = point.copy()
    off[names.index("beta")] = 0.1
    best, same, worse = SPACE.log_prior(np.array([point, moved, off]))
    assert best == same > worse


def test_a_parent_that_is_not_active_makes_its_child_inactive() -> None:
    space = SearchSpace(
        a=[1, 2], b=Choice([1, 2], when={"a": 1}), c=Float(0, 1, prior=0.1, confidence="high", when={"b": 2})
    )
    inactive, active = space.log_prior([[0.75, 0.75, 0.1], [0.25, 0.75, 0.1]])
    assert inactive == pytest.approx(0.0)
    assert active > 0.5


@pytest.mark.parametrize("units", [np.zeros(5), np.zeros((2, 4)), np.zeros((2, 5, 1))])
def test_points_of_another_shape_are_refused(units: Any) -> None:
    with pytest.raises(SearchSpaceError, match=r"units must have the shape \(n, 5\), got"):
        SPACE.log_prior(units)


@hypothesis_settings(max_examples=examples(40))
@given(st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_the_log_prior_is_finite_everywhere(u: list[float]) -> None:
    (value,) = SPACE.log_prior([u])
    assert math.log(UNIFORM_SHARE) <= value < 10.0


def test_spaces_with_priors_travel_and_differ() -> None:
    copy = SearchSpace.from_json(json.loads(json.dumps(SPACE.to_json())))
    assert copy == SPACE == pickle.loads(pickle.dumps(SPACE))
    assert copy.sample(np.random.default_rng(1)) == SPACE.sample(np.random.default_rng(1))
    assert SearchSpace(x=Float(0, 1, prior=0.5)) != SearchSpace(x=Float(0, 1))
    assert SearchSpace(x=Float(0, 1, prior=0.5)) != SearchSpace(x=Float(0, 1, prior=0.5, confidence="low"))


# -- what is tried first ----------------------------------------------------------------------------

FIRST = {"lr": 1e-3, "act": "gelu", "opt": "adam", "kind": "net", "beta": 0.9}


@pytest.mark.parametrize("optimizer", [RandomSearch, Sobol])
def test_the_configuration_of_all_priors_is_tried_first(optimizer: Any) -> None:
    study = Study(SPACE, optimizer(), n_trials=3)
    trials = [study.ask() for _ in range(4)]
    assert trials[3] is None
    configs = [trial.config for trial in trials if trial is not None]
    assert configs[0] == SPACE.prior_config == pytest.approx(FIRST)
    history = Study(SPACE, optimizer()).history
    assert configs[1:] == [SPACE.validate(optimizer().ask(index, history)) for index in range(2)]


def test_given_points_come_before_it_and_it_is_not_tried_twice() -> None:
    other = {**FIRST, "act": "relu"}
    assert Study(SPACE, RandomSearch(), points=[other, other]).points == (other, other, pytest.approx(FIRST))
    prior = SPACE.prior_config
    assert prior is not None
    assert Study(SPACE, RandomSearch(), points=[prior, other]).points == (prior, other)
    assert Study({"x": Float(0, 1)}, RandomSearch()).points == ()


def test_it_is_left_out_where_a_constraint_does_not_allow_it() -> None:
    space = SearchSpace(a=Float(0, 1, prior=0.1), b=Float(0, 1)).where(lambda config: config["a"] > config["b"])
    assert space.prior_config is None
    assert Study(space, RandomSearch()).points == ()


def test_random_search_finds_a_narrow_best_sooner_with_a_good_prior() -> None:
    def tries(space: SearchSpace) -> float:
        found = [
            next(i for i in range(1000) if abs(space.sample(rng)["x"] - 0.3) < 0.01)
            for rng in map(np.random.default_rng, range(60))
        ]
        return float(np.mean(found))

    plain = tries(SearchSpace(x=Float(0, 1)))
    assert tries(SearchSpace(x=Float(0, 1, prior=0.35, confidence="high"))) < 0.6 * plain
    assert tries(SearchSpace(x=Float(0, 1, prior=1.0, confidence="high"))) < 6.0 * plain
