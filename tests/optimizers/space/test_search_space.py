from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import History, Observation, Optimizer, Problem
from optimizers.core.study import Study
from optimizers.errors import OptimizerError, SearchSpaceError
from optimizers.samplers.model_based import untried
from optimizers.samplers.non_adaptive import FilteredSequence, Grid, RandomSearch, Sobol
from optimizers.samplers.optuna_sampler import TPE
from optimizers.schedulers.population import PBT
from optimizers.space import Config
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace, read_domain
from optimizers.testing import check_optimizer

# The child stands before its parent on purpose.
SPACE = SearchSpace(
    momentum=Float(0, 0.99, when={"opt": ["sgd", "rmsprop"]}),
    opt=["sgd", "rmsprop", "adam"],
    nesterov=Choice([True, False], when={"opt": "sgd"}),
    decay=Float(1e-5, 1e-2, log=True, when={"nesterov": True}),
    layers=Integer(1, 8),
    classes=10,
)


def points(space: SearchSpace) -> st.SearchStrategy[list[float]]:
    d = len(space.dimensions)
    return st.lists(st.floats(0, 1), min_size=d, max_size=d)


def test_order_names_and_dimensions() -> None:
    assert SPACE.names == tuple(SPACE) == ("momentum", "opt", "nesterov", "decay", "layers", "classes")
    assert SPACE.dimensions == SPACE.names[:-1]
    assert len(SPACE) == 6
    assert "opt" in SPACE
    assert "optt" not in SPACE
    with pytest.raises(TypeError):
        SPACE.domains["opt"] = Constant(1)  # type: ignore[index]
    order = SPACE.parents_first
    assert order.index("opt") < order.index("nesterov") < order.index("decay")


def test_parents_have_the_order_of_their_declaration() -> None:
    switches = {f"p{i}": Choice(["on", "off"]) for i in range(8)}
    child = Choice([1, 2], when=dict.fromkeys(switches, "on"))
    assert SearchSpace({"child": child, **switches}).parents_first == (*switches, "child")


@settings(max_examples=examples(60))
@given(points(SPACE))
def test_every_point_of_the_cube_is_a_valid_configuration(u: list[float]) -> None:
    config = SPACE.from_unit(u)
    assert SPACE.validate(config) == config
    assert list(config) == [name for name in SPACE if name in config]
    assert ("momentum" in config) == (config["opt"] != "adam")
    assert ("nesterov" in config) == (config["opt"] == "sgd")
    assert ("decay" in config) == config.get("nesterov", False)
    assert all(SPACE.is_active(name, config) == (name in config) for name in SPACE)
    assert json.loads(json.dumps(config)) == config
    back = SPACE.to_unit(config)
    assert back.shape == (5,)
    assert SPACE.from_unit(back) == pytest.approx(config)


def test_inactive_parameters_lie_in_the_middle() -> None:
    config = {"opt": "adam", "layers": 8, "classes": 10}
    assert SPACE.to_unit(config) == pytest.approx([0.5, 5 / 6, 0.5, 0.5, 15 / 16])


def test_activity_needs_active_parents() -> None:
    assert not SPACE.is_active("decay", {"opt": "adam", "nesterov": True})
    assert SPACE.is_active("decay", {"opt": "sgd", "nesterov": True})
    assert not SPACE.is_active("decay", {"opt": "sgd", "nesterov": 1})


def test_sampling_depends_on_the_generator_alone() -> None:
    first = [SPACE.sample(np.random.default_rng(3)) for _ in range(2)]
    assert first[0] == first[1]
    rng = np.random.default_rng(0)
    drawn = {SPACE.sample(rng)["opt"] for _ in range(30)}
    assert drawn == {"sgd", "rmsprop", "adam"}


def test_validate_normalizes() -> None:
    space = SearchSpace(lr=Float(0, 2), units=Integer(1, 9), act=["relu"])
    config = space.validate({"act": np.str_("relu"), "units": np.int32(3), "lr": 1})
    assert list(config.items()) == [("lr", 1.0), ("units", 3), ("act", "relu")]
    assert [type(value) for value in config.values()] == [float, int, str]


def test_mapping_and_names_add_up_but_may_not_clash() -> None:
    assert SearchSpace({"a": 1}, b=[1, 2]).names == ("a", "b")
    with pytest.raises(SearchSpaceError, match=r"\['a'\] are given twice"):
        SearchSpace({"a": 1}, a=2)


def test_size_is_the_product_or_none() -> None:
    assert SearchSpace(a=[1, 2], b=Integer(1, 5), c=7, d=Ordinal([1, 2])).size == 20
    assert SPACE.size is None


def test_json_pickle_repr_and_equality() -> None:
    assert SearchSpace.from_json(json.loads(json.dumps(SPACE.to_json()))) == SPACE
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
    assert eval(repr(SPACE)) == SPACE
    a, b = Float(0, 1), Float(0, 2)
    assert SearchSpace(a=a, b=b) != SearchSpace(b=b, a=a)
    assert SearchSpace(a=a) != SearchSpace(a=b)


@settings(max_examples=examples(50))
@given(st.integers(-20, 20), st.sampled_from([0.1, 0.05, 0.2, 0.7, 1 / 3]), st.integers(1, 40), st.data())
def test_a_condition_on_a_step_holds_however_its_decimal_is_spelled(
    low: int, step: float, n: int, data: st.DataObject
) -> None:
    domain = Float(low / 10, low / 10 + n * step, step=step)
    indices = data.draw(st.sets(st.integers(0, n), min_size=1))
    spelled = [float(f"{domain.low + index * step:.10g}") for index in indices]
    space = SearchSpace(parent=domain, child=Choice([1, 2], when={"parent": spelled}))
    for index in range(n + 1):
        config = space.from_unit([domain.to_unit(domain.low + index * step), 0.2])
        assert ("child" in config) == (index in indices)
        assert space.validate(config) == config
        assert space.is_active("child", {"parent": float(f"{domain.low + index * step:.10g}")}) == (index in indices)


def test_priors_count_where_a_condition_on_a_step_holds() -> None:
    space = SearchSpace(
        dropout=Float(0.1, 0.9, step=0.1), units=Float(0, 1, prior=0.9, confidence="high", when={"dropout": [0.3]})
    )
    at, beside = (space.domains["dropout"].to_unit(value) for value in (0.3, 0.4))
    near, far = space.log_prior([[at, 0.9], [at, 0.1]])
    assert near > far
    assert len(set(space.log_prior([[beside, 0.9], [beside, 0.1]]))) == 1


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (Float(0, 1), Float(0, 1)),
        (["relu", "gelu"], Choice(["relu", "gelu"])),
        (["adam"], Choice(["adam"])),
        (range(1, 4), Choice([1, 2, 3])),
        (0.1, Constant(0.1)),
        ("adam", Constant("adam")),
        (None, Constant(None)),
        (np.int64(3), Constant(3)),
        (("DOUBLE", [0, 1]), Float(0, 1)),
        (["integer", [1, 9]], Integer(1, 9)),  # as JSON has it
        (("integer", (1, 5)), Integer(1, 5)),
        (("Discrete", [16, 32]), Ordinal([16, 32])),
        (("CATEGORICAL", ["a", "b"]), Choice(["a", "b"])),
        ({"type": "float", "low": 1e-4, "high": 1, "log": True}, Float(1e-4, 1, log=True)),
    ],
)
def test_spellings(spelling: Any, expected: Domain) -> None:
    assert read_domain("p", spelling) == expected


# -- constraints ----------------------------------------------------------------------------------
def ordered(config: Config) -> bool:
    return bool(config["low"] < config["high"])


PLAIN = SearchSpace(low=Integer(1, 5), high=Integer(1, 5))
CONSTRAINTS_SPACE = PLAIN.where(ordered)
LINE = SearchSpace(low=Float(0, 1), high=Float(0, 1)).where(ordered)
ALLOWED = [{"low": low, "high": high} for low in range(1, 6) for high in range(low + 1, 6)]


def history(space: SearchSpace, seed: int = 0) -> History:
    return History(Problem(space, seed))


# -- the space --------------------------------------------------------------------------------------
def test_where_makes_a_new_space() -> None:
    assert CONSTRAINTS_SPACE.has_constraint
    assert not PLAIN.has_constraint
    assert CONSTRAINTS_SPACE.allows({"low": 1, "high": 2})
    assert not CONSTRAINTS_SPACE.allows({"low": 2, "high": 2})
    assert PLAIN.allows({"low": 2, "high": 2})
    assert CONSTRAINTS_SPACE != PLAIN
    assert PLAIN.where(ordered) == CONSTRAINTS_SPACE
    assert CONSTRAINTS_SPACE.names == PLAIN.names
    assert repr(CONSTRAINTS_SPACE) == repr(PLAIN) + ".where(ordered)"
    assert CONSTRAINTS_SPACE.to_json() == PLAIN.to_json()


def test_several_constraints_hold_together() -> None:
    both = CONSTRAINTS_SPACE.where(lambda config: config["high"] < 3)
    assert [config for config in ALLOWED if both.allows(config)] == [{"low": 1, "high": 2}]
    with pytest.raises(SearchSpaceError, match=r"\{'low': 1, 'high': 4\} is not allowed by the constraint <lambda>"):
        both.validate({"low": 1, "high": 4})


def test_validate_refuses_what_is_not_allowed_and_reads_the_rest() -> None:
    assert CONSTRAINTS_SPACE.validate({"high": np.int64(3), "low": 1.0}) == {"low": 1, "high": 3}
    with pytest.raises(SearchSpaceError, match="not allowed by the constraint ordered"):
        CONSTRAINTS_SPACE.validate({"low": 3, "high": 3})


@settings(max_examples=examples(30))
@given(st.integers(0, 2**32))
def test_draws_are_those_without_the_constraint_that_it_allows(seed: int) -> None:
    rng, plain = np.random.default_rng(seed), np.random.default_rng(seed)
    expected = (config for config in iter(lambda: PLAIN.sample(plain), None) if ordered(config))
    for _ in range(3):
        assert CONSTRAINTS_SPACE.sample(rng) == next(expected)


def test_a_predicate_gets_the_active_parameters_in_a_dict_of_its_own() -> None:
    seen: list[Config] = []

    def look(config: Config) -> bool:
        seen.append(dict(config))
        config.clear()
        return True

    space = SearchSpace(opt=["sgd", "adam"], momentum=Float(0, 1, when={"opt": "sgd"})).where(look)
    seen.clear()
    config = {"opt": "adam"}
    assert space.validate(config) == {"opt": "adam"} == config
    assert seen == [{"opt": "adam"}]


def test_numpy_s_booleans_will_do() -> None:
    space = PLAIN.where(lambda config: np.float64(config["low"]) < config["high"])
    assert space.sample(np.random.default_rng(0)) in ALLOWED


def test_a_lambda_travels_by_value_to_another_process() -> None:
    limit = 4
    space = PLAIN.where(lambda config: config["low"] + config["high"] > limit)
    again = pickle.loads(cloudpickle.dumps(space))
    assert again.sample(np.random.default_rng(1)) == space.sample(np.random.default_rng(1))
    code = (
        "import pickle, sys; space = pickle.load(sys.stdin.buffer);"
        "print(space.allows({'low': 1, 'high': 3}), space.allows({'low': 1, 'high': 4}))"
    )
    script = cloudpickle.dumps(space)
    done = subprocess.run([sys.executable, "-c", code], input=script, capture_output=True, check=True, timeout=300)
    assert done.stdout.split() == [b"False", b"True"]


# -- optimizers -------------------------------------------------------------------------------------
def test_grid_leaves_out_what_is_not_allowed() -> None:
    grid = Grid()
    assert grid.size(CONSTRAINTS_SPACE) == len(ALLOWED)
    asked = [grid.ask(index, history(CONSTRAINTS_SPACE)) for index in range(len(ALLOWED) + 2)]
    assert asked == [*ALLOWED, None, None]
    assert Grid().ask(7, history(CONSTRAINTS_SPACE)) == ALLOWED[7]
    assert grid.ask(3, history(PLAIN)) == {"low": 1, "high": 4}
    assert grid.size(PLAIN) == 25


def test_sobol_skips_what_is_not_allowed_and_takes_indexes_in_any_order() -> None:
    plain = SearchSpace(low=Float(0, 1), high=Float(0, 1))
    points = [Sobol().ask(index, history(plain)) for index in range(32)]
    allowed = [config for config in points if ordered(config)]
    sobol = Sobol()
    assert [sobol.ask(index, history(LINE)) for index in range(len(allowed))] == allowed
    assert sobol.ask(3, history(LINE)) == allowed[3]
    assert Sobol().ask(5, history(LINE)) == allowed[5]
    assert sobol.ask(0, history(LINE, seed=1)) != allowed[0]


def test_a_filtered_sequence_looks_at_each_configuration_once() -> None:
    looked: list[int] = []

    def at(place: int) -> Config | None:
        looked.append(place)
        return {"low": place % 3, "high": 1} if place < 9 else None

    filtered = FilteredSequence(CONSTRAINTS_SPACE, at)
    assert [filtered.at(index) for index in (1, 0, 1)] == [{"low": 0, "high": 1}] * 3
    assert looked == [0, 1, 2, 3]
    assert len(filtered) == 3
    assert filtered.at(3) is None


def test_what_is_proposed_instead_is_allowed_and_untried() -> None:
    rng = np.random.default_rng(0)
    tried = {CONSTRAINTS_SPACE.key(config) for config in ALLOWED if config != {"low": 4, "high": 5}}
    for running, ended in ((tried, set()), (set(), tried)):
        found = untried(CONSTRAINTS_SPACE, {"low": 5, "high": 1}, running, ended, rng)
        assert found == {"low": 4, "high": 5}
    all_of_it = {CONSTRAINTS_SPACE.key(config) for config in ALLOWED}
    assert untried(CONSTRAINTS_SPACE, {"low": 5, "high": 1}, all_of_it, set(), rng) in ALLOWED


def test_children_of_a_population_stay_near_their_parents() -> None:
    space = SearchSpace(a=Float(0, 1), b=Float(0, 1)).where(lambda config: config["a"] + config["b"] < 1.0)
    parent, pbt = {"a": 0.495, "b": 0.495}, PBT(perturbation=0.02)
    children = [pbt._explore(space, parent, history(space).rng(index)) for index in range(40)]
    assert all(space.allows(child) for child in children)
    assert all(abs(child["a"] - 0.495) < 0.1 for child in children)


def test_a_model_that_knows_no_constraint_still_proposes_near_the_best() -> None:
    known = history(LINE)
    rng = np.random.default_rng(3)
    for trial in range(40):
        config = LINE.sample(rng)
        known.apply(Observation(trial, config, 1, (config["low"] - 0.6) ** 2 + (config["high"] - 0.7) ** 2))
    proposals = [TPE().ask(index, known) for index in range(12)]
    assert all(ordered(config) for config in proposals)
    assert np.median([abs(config["low"] - 0.6) for config in proposals]) < 0.2


class Heedless(Optimizer):
    """Proposes points of the cube without a look at the constraints."""

    def ask(self, index: int, history: History) -> Config:
        return history.problem.space.from_unit(history.rng(index).random(2))


def test_an_optimizer_that_does_not_heed_them_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"configuration of the space\n.*not allowed by the constraint"):
        check_optimizer(Heedless, spaces={"line": LINE})
    answer = next(config for i in range(50) if not ordered(config := Heedless().ask(i, history(LINE))))
    with pytest.raises(OptimizerError, match=r"Heedless proposed .*not allowed by the constraint ordered"):
        Study(LINE, Heedless()).checked(answer)


@pytest.mark.parametrize("factory", [RandomSearch, Sobol, Grid])
def test_a_whole_search_stays_within_them(factory: Any) -> None:
    study = Study(CONSTRAINTS_SPACE, factory(), n_trials=8, points=[{"low": 2, "high": 3}])
    while (trial := study.ask()) is not None:
        study.tell(trial, float(trial.config["low"]))
    assert len(study.trials) == 8
    assert all(trial.config in ALLOWED for trial in study.trials)


ORDERS = [["sgd", "adam"], ["adam", "sgd"], [*"abcdefghijklmnopqrstuvwxyz", "sgd"]]


@pytest.mark.parametrize("optimizers", ORDERS, ids=["first", "last", "one of many"])
@pytest.mark.parametrize("when", ["sgd", "others"])
def test_a_constraint_that_needs_an_inactive_parameter_is_refused_at_once(optimizers: list[str], when: str) -> None:
    values = "sgd" if when == "sgd" else [name for name in optimizers if name != "sgd"]
    space = SearchSpace(optimizer=optimizers, momentum=Float(0, 1, when={"optimizer": values}), lr=Float(0, 1))
    with pytest.raises(SearchSpaceError, match=r"raised KeyError\('momentum'\) for .*; use config.get\(name\)"):
        space.where(lambda config: config["momentum"] < 0.9)
    kept = space.where(lambda config: config.get("momentum", 0.0) < 0.9)
    with pytest.raises(SearchSpaceError, match=r"raised KeyError\('momentum'\)"):
        kept.where(lambda config: config["momentum"] < config["lr"])


def test_a_constraint_is_tried_where_grandchildren_are_active_and_where_not() -> None:
    space = SearchSpace(
        kind=["tree", "net"],
        layers=Integer(1, 50, when={"kind": "net"}),
        units=Integer(1, 9, when={"layers": 50}),
        rate=Float(0, 1, when={"kind": "net", "layers": [49, 50]}),
    )

    def active(names: set[str]) -> Any:
        return lambda config: config["x"] if names <= set(config) else True

    for names in ({"kind"}, {"layers"}, {"units"}, {"rate"}, {"units", "rate"}):
        with pytest.raises(SearchSpaceError, match=r"raised KeyError\('x'\)"):
            space.where(active(names))
    for name in ("layers", "units", "rate"):
        with pytest.raises(SearchSpaceError, match="raised KeyError"):
            space.where(lambda config, name=name: config[name] is not None)


def test_constants_of_a_configuration_may_be_left_out() -> None:
    space = SearchSpace({"opt": Choice(["adam", "sgd"]), "momentum": Constant(0.9, when={"opt": "sgd"}), "seed": 1})
    assert space.validate({"opt": "sgd"}) == {"opt": "sgd", "momentum": 0.9, "seed": 1}
    assert space.validate({"opt": "adam"}) == {"opt": "adam", "seed": 1}


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda space: space["lr"], TypeError, r"has no items; use space.domains\['lr'\]"),
        (lambda space: space.keys(), AttributeError, "has no attribute 'keys'; use space.names"),
        (
            lambda space: space.sample(0),
            TypeError,
            r"rng must be a numpy Generator, got 0; use numpy.random.default_rng\(",
        ),
    ],
)
def test_what_a_space_does_not_have_is_an_error_that_names_what_it_has(
    wrong: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        wrong(SearchSpace(lr=Float(0, 1)))
