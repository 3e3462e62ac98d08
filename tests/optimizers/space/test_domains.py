from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scipy.stats import kstest, truncnorm

from maggy_like.protocol.messages import Assign, decode_to_worker, encode
from maggy_like.storage.journal.records import from_records, to_records
from optimizers.core.base import Observation
from optimizers.core.events import AttemptStarted, TrialCreated, from_json, to_json
from optimizers.core.study import Study
from optimizers.errors import SearchSpaceError
from optimizers.samplers.non_adaptive import RandomSearch, Sobol
from optimizers.space import Config
from optimizers.space.domains import (
    NO_PRIOR,
    UNIFORM_SHARE,
    WEIGHTS,
    Bell,
    Choice,
    Constant,
    Dimension,
    Domain,
    Favourite,
    Float,
    Integer,
    Ordinal,
    Prior,
    domain_from_json,
)
from optimizers.space.scalars import Value, same
from optimizers.space.search_space import SearchSpace

BOUNDS = st.integers(-(2**40), 2**40)
DISCRETE = [
    Integer(-3, 11),
    Integer(0, 10, step=4),
    Integer(1, 1000, log=True),
    Integer(2**40 - 5, 2**40, log=True),
    Float(0.0, 0.3, step=0.1),
    Float(-1, 1, step=0.3),
    Choice(["a", 1, True, None, 2.5]),
    Ordinal([16, 32, 64]),
]
DOMAINS: list[Domain] = [*DISCRETE, Float(-2, 3), Float(1e-6, 1.0, log=True), Constant("x")]


def every_value(domain: Domain) -> list[Any]:
    assert domain.size is not None
    return domain.grid(domain.size)


@pytest.mark.parametrize("domain", DISCRETE, ids=repr)
def test_discrete_values_survive_the_unit_interval_exactly(domain: Domain) -> None:
    values = every_value(domain)
    assert len(values) == domain.size
    for value in values:
        back = domain.from_unit(domain.to_unit(value))
        assert back == value
        assert type(back) is type(value)


@settings(max_examples=examples(50))
@given(st.floats(1e-8, 1e8), st.floats(1.01, 1e6), st.floats(0, 1), st.booleans())
def test_floats_survive_to_rounding_and_stay_in_range(low: float, ratio: float, u: float, log: bool) -> None:
    domain = Float(low, low * ratio, log=log)
    value = domain.from_unit(u)
    assert domain.contains(value)
    assert domain.to_unit(value) == pytest.approx(u, abs=1e-7)
    assert domain.from_unit(domain.to_unit(value)) == pytest.approx(value, rel=1e-9)
    assert (domain.from_unit(0), domain.from_unit(1)) == (domain.low, domain.high)


@settings(max_examples=examples(50))
@given(BOUNDS, BOUNDS, st.floats(0, 1), st.booleans())
def test_integers_of_any_size_survive(a: int, b: int, u: float, log: bool) -> None:
    low, high = sorted((abs(a) + 1, abs(b) + 1) if log else (a, b))
    if low == high or high > 2**40:
        return
    domain = Integer(low, high, log=log)
    value = domain.from_unit(u)
    assert type(value) is int
    assert domain.from_unit(domain.to_unit(value)) == value
    assert domain.from_unit(0) == low
    assert domain.from_unit(1) == high


@pytest.mark.parametrize("domain", [d for d in DISCRETE if not getattr(d, "log", False)], ids=repr)
def test_discrete_values_have_equal_shares(domain: Domain) -> None:
    values = every_value(domain)
    per_cell = 30
    points = [(i + 0.5) / (per_cell * len(values)) for i in range(per_cell * len(values))]
    drawn = [repr(domain.from_unit(u)) for u in points]
    assert [drawn.count(repr(value)) for value in values] == [per_cell] * len(values)


def test_log_integers_have_the_shares_of_their_cells_on_a_log_scale() -> None:
    domain = Integer(1, 100, log=True)
    drawn = [domain.from_unit(u) for u in np.linspace(0, 1, 10_001)]
    assert drawn.count(1) / len(drawn) == pytest.approx(np.log(1.5 / 0.5) / np.log(100.5 / 0.5), abs=1e-3)


@pytest.mark.parametrize(
    ("domain", "n", "expected"),
    [
        (Float(0, 1), 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (Float(1e-4, 1, log=True), 3, [1e-4, pytest.approx(1e-2), 1.0]),
        (Float(0, 1), 1, [0.5]),
        (Float(0, 1, step=0.25), 9, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (Integer(1, 3), 5, [1, 2, 3]),
        (Integer(0, 100), 3, [0, 50, 100]),
        (Integer(1, 8, log=True), 2, [1, 8]),
        (Choice(["a", "b", "c"]), 2, ["a", "b", "c"]),
        (Ordinal([1, 2, 3, 4, 5]), 3, [1, 3, 5]),
        (Constant(None), 3, [None]),
    ],
)
def test_grid(domain: Domain, n: int, expected: list[Any]) -> None:
    assert domain.grid(n) == expected


def test_a_float_grid_has_no_drift_and_ends_at_high() -> None:
    domain = Float(0, 1, step=0.1)
    assert domain.size == 11
    assert every_value(domain) == [k / 10 for k in range(11)]
    assert every_value(Float(0, 1, step=0.3))[-1] == pytest.approx(0.9)
    assert Float(0, 0.3, step=0.1).normalize(0.3) == 0.3


@given(low=st.integers(-999, 999), step=st.integers(1, 99), n=st.integers(1, 40), places=st.integers(-3, 12))
def test_values_with_a_step_are_the_decimals_that_one_would_write(low: int, step: int, n: int, places: int) -> None:
    def written(number: int) -> float:
        return float(f"{number}e{-places}")

    domain = Float(written(low), written(low + n * step), step=written(step))
    assert every_value(domain) == [written(low + k * step) for k in range(n + 1)]


@pytest.mark.parametrize(
    ("domain", "value", "expected"),
    [
        (Float(0, 2), 1, 1.0),
        (Float(0, 2), np.float32(0.5), 0.5),
        (Integer(0, 9), np.int64(3), 3),
        (Integer(0, 9), 4.0, 4),
        (Float(0, 1, step=0.1), 0.1 * 3, 0.3),
        (Choice([1.0, 2.0]), 1, 1.0),
        (Choice([1, True]), True, True),
        (Choice(["a", "b"]), np.str_("b"), "b"),
        (Choice([(64, 64), (128,)]), np.array([64, 64]), (64, 64)),
        (Ordinal([8, [1.5]]), np.array([1.5]), [1.5]),
        (Constant((1, 2)), np.array([1, 2]), (1, 2)),
    ],
)
def test_normalize_gives_plain_values_of_the_domains_type(domain: Domain, value: Any, expected: Any) -> None:
    got = domain.normalize(value)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (Float(0, 1), 1.5),
        (Float(0, 1), float("nan")),
        (Float(0, 1), True),
        (Float(0, 1), "0.5"),
        (Float(0, 1, step=0.1), 0.35),
        (Integer(0, 9), 2.5),
        (Integer(0, 9), 10),
        (Integer(0, 9, step=2), 3),
        (Integer(0, 9), 10**400),
        (Choice([1, 2]), True),
        (Choice(["relu"]), ["relu"]),
        (Constant(3), 4),
        (Choice([(64, 64), (128,)]), np.array([64, 65])),
        (Choice(["a", 1]), np.array([1, 1])),
        (Constant((1, 2)), np.zeros((2, 2))),
    ],
)
def test_values_outside_are_refused(domain: Domain, value: Any) -> None:
    assert not domain.contains(value)
    with pytest.raises(SearchSpaceError, match="is not "):
        domain.to_unit(value)


def test_when_takes_a_value_or_several() -> None:
    domain = Float(0, 1, when={"opt": "sgd", "depth": [1, 2], "aug": None})
    assert domain.conditions == {"opt": ("sgd",), "depth": (1, 2), "aug": (None,)}
    assert Float(0, 1).conditions == {}


@pytest.mark.parametrize("domain", [*DOMAINS, Integer(1, 5, when={"opt": ["sgd", None]})], ids=repr)
def test_domains_travel_as_json_pickle_and_repr(domain: Domain) -> None:
    assert domain_from_json(json.loads(json.dumps(domain.to_json()))) == domain
    copy = pickle.loads(pickle.dumps(domain))
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert eval(repr(domain)) == domain


def test_a_domain_that_was_sent_to_a_process_has_the_same_form() -> None:
    domain = pickle.loads(pickle.dumps(Float(0, 1, prior=0.5)))
    assert domain.to_json() == Float(0, 1, prior=0.5).to_json()
    assert "confidence" not in domain.to_json()


# -- tuples and lists as values of choices: the very value comes back, whatever it travelled through
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.text(max_size=3))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))
LAYERS = SearchSpace(layers=[(64, 64), (128,), [32, [16]], "none"])


def distinct(values: list[Value]) -> list[Value]:
    return [value for n, value in enumerate(values) if not any(same(value, earlier) for earlier in values[:n])]


@given(st.lists(VALUES, min_size=1, max_size=5).map(distinct))
def test_the_very_choice_comes_back(values: list[Value]) -> None:
    domain = Choice(values)
    assert repr(domain_from_json(json.loads(json.dumps(domain.to_json())))) == repr(domain)
    for value in values:
        assert repr(domain.from_unit(domain.to_unit(value))) == repr(value)
        assert repr(domain.normalize(json.loads(json.dumps(value)))) == repr(value)  # JSON makes lists of tuples


@given(st.dictionaries(st.text(min_size=1, max_size=3), VALUES, max_size=3))
def test_configurations_travel_exactly(config: dict[str, Value]) -> None:
    events = (TrialCreated(0, config, 0), AttemptStarted(0, 1, 0, 9, 0.0, config))
    for event in events:
        assert repr(from_json(to_json(event))) == repr(event)
    order = Assign(0, 1, config, 9, (), None)
    assert repr(decode_to_worker(encode(order))) == repr(order)
    seen = Observation(0, config, 1, 0.5)
    assert repr(from_records(to_records(((seen,),)))) == repr(((seen,),))


def test_the_value_of_a_choice_cannot_be_changed() -> None:
    drawn = LAYERS.from_unit([0.6])
    assert drawn == {"layers": [32, [16]]}
    drawn["layers"][1].append(3)
    assert LAYERS.from_unit([0.6]) == {"layers": [32, [16]]}


def test_lists_and_tuples_in_other_places() -> None:
    assert Ordinal([(1,), (1, 2), (1, 2, 3)], prior=[1, 2]).prior == (1, 2)
    assert Constant((3, 3)).normalize([3, 3]) == (3, 3)
    space = SearchSpace(layers=Choice([(64, 64), (128,)]), rate=Choice([1, 2], when={"layers": [(128,)]}))
    assert space.validate({"layers": [128], "rate": 2}) == {"layers": (128,), "rate": 2}
    assert len({space.domains["layers"], Choice([(64, 64), (128,)]), Choice([[1]])}) == 2
    assert len(Ordinal([[1], [2], [3]]).grid(2)) == 2
    assert SearchSpace.from_json(json.loads(json.dumps(space.to_json()))) == space
    assert all(space.allows(space.sample(np.random.default_rng(seed))) for seed in range(5))


def test_a_parameter_may_be_called_as_the_form_of_a_tuple() -> None:
    space = SearchSpace({"tuple": Choice([1, (3, 4)]), "rate": Choice([1, 2], when={"tuple": [(3, 4)]})})
    assert repr(SearchSpace.from_json(json.loads(json.dumps(space.to_json())))) == repr(space)
    config = {"tuple": (3, 4), "rate": 1}
    assert from_json(to_json(TrialCreated(0, config, 0))) == TrialCreated(0, config, 0)


def test_what_is_the_same_is_refused_twice() -> None:
    with pytest.raises(SearchSpaceError, match=r"values of Choice must differ, got \[64\] twice"):
        Choice([(64,), [64]])
    assert Choice([(1,), (True,)]).size == 2


def test_names_that_are_no_identifiers_show_in_a_repr_that_can_be_read() -> None:
    space = SearchSpace({"lambda": 1, "model.lr": [0.1, 0.2]})
    assert repr(space) == "SearchSpace({'lambda': Constant(1), 'model.lr': Choice([0.1, 0.2])})"
    assert space.validate({"model.lr": 0.2, "lambda": 1}) == {"lambda": 1, "model.lr": 0.2}


# -- priors ---------------------------------------------------------------------------------------
PRIORS_DOMAINS: list[Dimension] = [
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


@pytest.mark.parametrize("domain", PRIORS_DOMAINS, ids=repr)
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
    counts = np.bincount([int(prior.quantile((i + 0.5) / 500) * 4) for i in range(500)])
    assert counts.tolist() == [100, 200, 100, 100]
    density = np.exp(prior.log_density(np.array([0.125, 0.375, 0.625, 1.0])))
    assert density == pytest.approx([0.8, 1.6, 0.8, 0.8])


def test_what_has_an_order_is_likelier_near_its_prior() -> None:
    prior = Ordinal([1, 2, 3, 4], prior=2).density
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
