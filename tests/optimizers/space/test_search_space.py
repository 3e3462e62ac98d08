from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scipy import stats

from optimizers.errors import SearchSpaceError
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace
from optimizers.space.spellings import read_domain

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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"opt": "adam", "layer": 2, "classes": 10}, "no 'layer' .did you mean 'layers'"),
        ({"opt": "adam", "classes": 10}, "'layers' is missing"),
        ({"opt": "adam", "layers": 9, "classes": 10}, "parameter 'layers': 9 is not in Integer"),
        ({"opt": "adam", "layers": 2, "classes": 10, "momentum": 0.5}, "'momentum' is only active when"),
        ({"opt": "adam", "layers": 2, "classes": 11}, "parameter 'classes': 11"),
    ],
)
def test_wrong_configurations(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message):
        SPACE.validate(config)


@pytest.mark.parametrize("u", [[0.5] * 4, [[0.5] * 5], [0.5, 0.5, 0.5, 0.5, 1.5]])
def test_wrong_points(u: Any) -> None:
    with pytest.raises(SearchSpaceError):
        SPACE.from_unit(u)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([("a", 1)], "must be a dict of names and domains, got .*; use"),
        ({"": 1}, r"printable characters .*got ''; use one"),
        ({" lr": 1}, "without spaces around it, got ' lr'"),
        ({"l\nr": 1}, "printable characters .*got 'l.nr'"),
        ({"\x1b[31m": 1}, "printable characters"),
        ({3: 1}, "must be a text of .* got 3"),
        ({"a": (1, 2)}, "parameter 'a'"),
        ({"a": Float(0, 1, when={"bb": 1}), "bbb": 1}, "'a' cannot depend on 'bb': .* mean 'bbb'"),
        ({"a": Float(0, 1, when={"b": 3}), "b": [1, 2]}, "cannot depend on 'b': 3 is not in"),
        ({"a": Float(0, 1, when={"b": 0.5}), "b": Float(0, 1)}, "use a step"),
        (
            {"a": Choice([1, 2], when={"b": 1}), "b": Choice([1, 2], when={"a": 1})},
            "conditions must not form a cycle, got (a <- b <- a|b <- a <- b)",
        ),
    ],
)
def test_wrong_spaces(params: Any, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message):
        SearchSpace(params)


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


# -- spellings ------------------------------------------------------------------------------------


class LogNormal:
    """A distribution as torch has it, whose ``support`` is no method."""

    support = "positive"

    def sample(self) -> float:
        return 1.0


class Series:
    """A column as pandas has it, which has a ``sample()`` too."""

    shape = (2,)

    def sample(self) -> Series:
        return self


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
        (("integer", (1, 5)), Integer(1, 5)),
        (("Discrete", [16, 32]), Ordinal([16, 32])),
        (("CATEGORICAL", ["a", "b"]), Choice(["a", "b"])),
        ({"type": "float", "low": 1e-4, "high": 1, "log": True}, Float(1e-4, 1, log=True)),
    ],
)
def test_spellings(spelling: Any, expected: Domain) -> None:
    assert read_domain("p", spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ((0.1, 0.9), r"use Float\(0.1, 0.9\) or \[0.1, 0.9\]"),
        ((1, 9), r"use Float\(1, 9\), Integer\(1, 9\) or \[1, 9\]"),
        (("DUOBLE", [0, 1]), "did you mean 'DOUBLE'"),
        (("DOUBLE", [0, 1, 2]), r"'DOUBLE' must have \[low, high\], got \[0, 1, 2\]"),
        (("INTEGER", [5, 1]), "low must be below high"),
        (("relu", "gelu"), "use a list for a choice"),
        ((1, 2, 3), "use a list for a choice"),
        ([], "values of Choice must not be empty"),
        ([[1, 2], [{3}]], "look it up in train_fn"),
        ({1, 2}, r"values must be a list, got \{1, 2\}; use \[1, 2\]"),
        ({"low": 0, "high": 1}, "with a type, got"),
        ({"values": [1, 2]}, r"with a type, got .*or a list of values"),
        (
            {"lr": Float(0, 1), "name": "adam"},
            "must be flat, got a dict with 'lr', 'name'; name its parameters 'p_lr', 'p_name'$",
        ),
        ({"type": ["adam", "sgd"], "lr": 0.1}, "must be flat, .* name its parameters 'p_type', 'p_lr'$"),
        ({"lr": {"type": "float", "low": 0, "high": 1}}, "name its parameters 'p_lr'$"),
        ({"layers": [1, 2]}, "name its parameters 'p_layers'$"),
        (
            stats.loguniform(1e-4, 1e-1),
            r"must not be a distribution, got loguniform; use Float\(0.0001, 0.1, log=True\)",
        ),
        (stats.uniform(0, 2), r"must not be a distribution, got uniform; use Float\(0, 2\)"),
        (stats.randint(1, 9), r"must not be a distribution, got randint; use Integer\(1, 8\)"),
        (LogNormal(), r"distribution, got LogNormal; use Float\(low, high, log=True\)"),
        (Series(), r"values must be a list, got a Series, .*; use \.tolist\(\)"),
        (stats.norm(), r"must not be a distribution, got norm; use Float\(low, high\)"),
        (stats.Uniform(a=1, b=2), r"must not be a distribution, got Uniform; use Float\(1, 2\)"),
        (Float, r"must have arguments, got the class Float; use Float\(...\)"),
        (float("inf"), "a number must be finite, got inf"),
    ],
)
def test_an_unreadable_spelling_raises_with_the_parameter_and_a_remedy(spelling: Any, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=f"parameter 'p': .*{message}"):
        read_domain("p", spelling)
