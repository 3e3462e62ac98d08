from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from optimizers.samplers.bayesian.acquisition import Axes
from optimizers.space.domains import Choice, Float, Ordinal
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES

NESTED = SearchSpace(
    kind=Choice(["a", "b"]),
    sort=Choice(["x", "y"], when={"kind": "a"}),
    depth=Ordinal([1, 2, 4, 8, 16], when={"sort": ["x"]}),
    rate=Float(0.1, 0.95, step=0.2, when={"depth": [1, 16]}),
)
ALL = {**SPACES, "nested": NESTED}


@pytest.mark.parametrize("name", ALL)
def test_snapped_points_are_those_of_configurations(name: str) -> None:
    space = ALL[name]
    axes = Axes(space)
    units = np.random.default_rng(0).random((60, axes.d))
    units[:4] = np.array([0.0, 1.0, 0.25, 0.5])[:, None]
    snapped = axes.snap(units)
    assert snapped == pytest.approx(np.array([space.to_unit(space.from_unit(u)) for u in units]), abs=1e-9)
    assert (axes.snap(snapped) == snapped).all()


@pytest.mark.parametrize("name", [name for name in ALL if name != "single"])
@pytest.mark.parametrize("scale", [0.5, 1e-3])
def test_neighbours_lie_in_the_cube_and_most_are_others(name: str, scale: float) -> None:
    axes, rng = Axes(ALL[name]), np.random.default_rng(1)
    units = axes.snap(rng.random((200, axes.d)))
    moved = axes.mutate(units, rng, np.full(200, scale), 0.3)
    assert ((moved >= 0.0) & (moved <= 1.0)).all()
    assert (axes.snap(moved) == moved).all()
    # A choice may draw the value that it had, and an axis that is not active stays where it is.
    assert (moved != units).any(axis=1).mean() > 0.2


def test_a_neighbour_of_a_discrete_number_leaves_its_cell_at_the_borders_too() -> None:
    axes = Axes(SearchSpace(size=Ordinal([1, 2, 3, 4])))
    units = axes.snap(np.linspace(0.0, 1.0, 40)[:, None])
    moved = axes.mutate(units, np.random.default_rng(2), np.full(40, 1e-6), 1.0)
    assert np.abs(moved - units) == pytest.approx(np.full((40, 1), 0.25))


def test_two_values_of_a_choice_are_as_far_apart_as_the_ends_of_an_axis() -> None:
    space = SearchSpace(act=Choice(["a", "b", "c"]), lr=Float(1e-3, 1.0, log=True))
    axes = Axes(space)
    configs = [{"act": act, "lr": lr} for act in "abc" for lr in (1e-3, 1.0)]
    features = axes.features(np.array([space.to_unit(config) for config in configs]))
    assert features.shape == (6, len(axes.groups))
    assert axes.groups.tolist() == [0, 0, 0, 1]
    squares = ((features[:, None] - features) ** 2).sum(axis=2)
    for (i, a), (j, b) in pairwise([*enumerate(configs), (0, configs[0]), (3, configs[3]), (4, configs[4])]):
        assert squares[i, j] == pytest.approx((a["act"] != b["act"]) + (a["lr"] != b["lr"]))


def test_other_choices_change_one_choice_and_what_depends_on_it() -> None:
    axes = Axes(NESTED)
    names = list(NESTED.dimensions)
    sort, depth = names.index("sort"), names.index("depth")
    point = NESTED.to_unit({"kind": "a", "sort": "y"})
    others = axes.other_choices(np.array(point))
    assert (axes.snap(others) == others).all()
    configs = [NESTED.from_unit(other) for other in others]
    assert [config["kind"] for config in configs] == ["b", "a"]
    assert "sort" not in configs[0]
    assert configs[1]["sort"] == "x"
    assert "depth" in configs[1]
    assert others[0, [sort, depth]].tolist() == [0.5, 0.5]


def test_without_choices_there_are_no_others() -> None:
    axes = Axes(SearchSpace(x=Float(0, 1), size=Ordinal([1, 2])))
    assert axes.other_choices(np.array([0.5, 0.25])).shape == (0, 2)
