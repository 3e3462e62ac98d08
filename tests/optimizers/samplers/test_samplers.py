from __future__ import annotations

import importlib.util
import itertools
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import History, Observation, Pending, Problem
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import Grid, RandomSearch, Sobol, n_configurations
from optimizers.samplers.skopt_search import SkoptSearch, _most_telling
from optimizers.schedulers.asha import ASHA
from optimizers.space import Config
from optimizers.space.domains import Choice, Domain, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace

LINE = SearchSpace(x=Float(0, 1))


def fresh(space: SearchSpace, seed: int = 0, n_trials: int | None = None) -> History:
    return History(Problem(space, seed, n_trials=n_trials))


def ended(space: SearchSpace, losses: list[tuple[Config, float]]) -> History:
    history = fresh(space)
    for trial, (config, loss) in enumerate(losses):
        history.apply(Observation(trial, config, 1, loss))
    return history


def bowl(n: int, best: float = 0.8) -> list[tuple[Config, float]]:
    return [({"x": (i + 0.5) / n}, ((i + 0.5) / n - best) ** 2) for i in range(n)]


def test_importing_the_package_loads_no_scipy() -> None:
    heavy = "{'optuna', 'scipy', 'skopt', 'sklearn'}"
    code = f"import sys, optimizers; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_random_search_is_addressed_by_seed_and_index() -> None:
    proposals = [RandomSearch().ask(index, fresh(LINE, seed))["x"] for seed in (0, 1) for index in (0, 1, 9)]
    assert len(set(proposals)) == 6
    assert RandomSearch().ask(9, fresh(LINE, 1))["x"] == proposals[-1]


DEEP = SearchSpace(
    child=Choice([1, 2, 3], when={"parent": "a"}),
    free=Integer(0, 1),
    parent=["a", "b"],
    grandchild=Ordinal(["x", "y"], when={"child": [1, 2]}),
    other=Float(0, 1, when={"parent": "b"}),
)


def test_grid_of_a_conditional_space_has_each_configuration_once() -> None:
    history = fresh(DEEP)
    grid = Grid(3)
    # a: child 1 and 2 with two grandchildren each, child 3 without; b: three values of other.
    assert grid.size(DEEP) == 2 * (2 + 2 + 1 + 3)
    configs = [grid.ask(index, history) for index in range(18)]
    assert configs[16:] == [None, None]
    assert len({json.dumps(config) for config in configs[:16]}) == 16
    assert all(config == DEEP.validate(config) for config in configs[:16] if config is not None)


@settings(max_examples=examples(20))
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_grid_is_the_product_of_the_domains_grids(resolution: int, high: int, n: int) -> None:
    space = SearchSpace(a=Integer(0, high), b=Float(0, 1), c=list(range(n)), d="fixed")
    expected = [
        {"a": a, "b": b, "c": c, "d": "fixed"}
        for a in space.domains["a"].grid(resolution)
        for b in space.domains["b"].grid(resolution)
        for c in range(n)
    ]
    grid = Grid(resolution)
    assert [grid.ask(index, fresh(space)) for index in range(len(expected) + 1)] == [*expected, None]


LISTED = [
    Choice([8, 16, 32, 64, 128, 256, 512]),
    Ordinal([8, 16, 32, 64, 128, 256, 512]),
    Integer(16, 256, step=16),
    Float(0, 1, step=0.125),
    Integer(1, 5),
]
THINNED = {
    "5 of the 9 values of 'batch'": Integer(58, 66),
    "5 values of 'batch'": Float(0, 1),
    "3 of the 4 values of 'batch'": Integer(1, 4, log=True),
    "5 of the 1025 values of 'batch'": Float(0, 1, step=2**-10),
}


@pytest.mark.parametrize("domain", LISTED, ids=repr)
def test_a_grid_tries_all_values_that_are_listed(domain: Domain) -> None:
    space = SearchSpace(batch=domain, other=[True, False])
    grid = Grid()
    tried = {config["batch"] for index in range(grid.size(space)) if (config := grid.at(space, index))}
    assert len(tried) == domain.size
    assert grid.remarks(Problem(space)) == []


@pytest.mark.parametrize("said", THINNED)
def test_a_grid_says_which_ranges_it_thins(said: str) -> None:
    space = SearchSpace(other=[1, 2], batch=THINNED[said])
    for optimizer in (Grid(int(said[0])), ASHA(sampler=Grid(int(said[0])))):
        assert [said in remark for remark in optimizer.remarks(Problem(space))] == [True]
    assert RandomSearch().remarks(Problem(space)) == []


@settings(max_examples=examples(30))
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans(), st.booleans(), st.integers(1, 300))
def test_configurations_are_counted(sizes: list[int], conditional: bool, constrained: bool, below: int) -> None:
    domains: dict[str, Domain] = {f"p{i}": Choice(list(range(size))) for i, size in enumerate(sizes)}
    if conditional:
        domains["child"] = Integer(0, 2, when={"p0": 0})
    space = SearchSpace(domains)
    if constrained:
        space = space.where(lambda config: sum(config.values()) % 2 == 0)
    grid = Grid(space.size or 1)
    found = {space.key(config) for index in range(space.size or 1) if (config := grid.at(space, index)) is not None}
    assert n_configurations(space, None) == len(found)
    assert n_configurations(space, below) == (len(found) if len(found) < below else None)


@pytest.mark.parametrize(
    "space",
    [
        LINE,
        SearchSpace(a=Integer(1, 2**40), b=Integer(1, 200, when={"a": 1})),
        SearchSpace(a=Integer(1, 200), b=Integer(1, 200)).where(lambda config: config["a"] != config["b"]),
    ],
)
def test_what_is_infinite_or_too_large_is_not_counted(space: SearchSpace) -> None:
    assert n_configurations(space, None) is None


def conditions(n: int) -> SearchSpace:
    """A choice of zero or one, and as many others that depend on it."""
    return SearchSpace(p=[0, 1], **{f"c{i:02}": Choice([1, 2], when={"p": 1}) for i in range(n)}, last=[3, 4])


def diamonds(n: int) -> SearchSpace:
    """Choices each of which depends on the two before it: as many paths lead to the last as rabbits to Fibonacci."""
    parents = [{f"c{j}": 1 for j in range(max(0, i - 2), i)} for i in range(n)]
    return SearchSpace({f"c{i}": Choice([0, 1], when=parents[i] or None) for i in range(n)})


@pytest.mark.parametrize(
    ("space", "size"), [(conditions(40), 2 * (1 + 2**40)), (diamonds(40), 41), (conditions(2), 10), (diamonds(3), 4)]
)
def test_conditions_are_counted_and_not_enumerated(space: SearchSpace, size: int) -> None:
    grid = Grid()
    assert grid.size(space) == size
    assert n_configurations(space, None) == size
    assert n_configurations(space, 7) == (size if size < 7 else None)
    asked = [grid.at(space, index) for index in (0, 3, size - 1)]
    assert [None if config is None else space.validate(config) for config in asked] == asked
    assert grid.at(space, size) is None
    assert len(space.from_unit(np.ones(len(space)))) == len(space)
    assert space.is_active(space.names[-1], space.from_unit(np.ones(len(space))))


def test_a_conditional_grid_has_the_order_of_its_product() -> None:
    space, grid = conditions(3), Grid()
    found = [list(grid.at(space, index).values()) for index in range(grid.size(space))]  # type: ignore[union-attr]
    inactive = [[0, last] for last in (3, 4)]
    assert found == [*inactive, *([1, *values] for values in itertools.product((1, 2), (1, 2), (1, 2), (3, 4)))]


def test_permutations_are_found_without_all_that_comes_before() -> None:
    called = 0

    def is_permutation(config: Config) -> bool:
        nonlocal called
        called += 1
        return len(set(config.values())) == len(config)

    space = SearchSpace({f"p{i}": list(range(8)) for i in range(8)}).where(is_permutation)  # 40,320 of 16,777,216
    called = 0
    grid = Grid()
    found = [grid.ask(index, fresh(space, n_trials=6)) for index in range(6)]
    assert len({str(config) for config in found}) == 6
    assert grid.size(space) == 8**8
    assert called < 20_000  # the first of them in order is the 342,391st


def test_a_scattered_grid_has_each_configuration_once() -> None:
    space = SearchSpace(a=Integer(1, 120), b=Integer(1, 120)).where(lambda config: config["a"] > config["b"] + 40)
    grid = Grid(120)
    found = {str(grid.at(space, index)) for index in range(79 * 80 // 2)}
    assert len(found) == 79 * 80 // 2
    assert "None" not in found
    assert grid.at(space, 79 * 80 // 2) is None


@pytest.mark.parametrize(
    ("domains", "n_trials", "size"),
    [
        ({"n": Integer(0, 5)}, 6, 6),
        ({"n": Integer(0, 5)}, 5, 5),
        ({"n": Integer(0, 5), "act": ["relu", "gelu"]}, 12, 12),
        ({"n": Integer(0, 5), "act": ["relu", "gelu"]}, 11, 10),
        ({"n": Integer(0, 5), "x": Float(0, 1)}, 30, 30),
        ({"n": Integer(0, 5), "m": Integer(0, 9, when={"n": 0})}, 15, 15),
        ({"n": Integer(0, 5), "m": Integer(0, 2**40)}, 100, 25),
        ({"n": Float(0, 1, step=2**-10)}, 2000, 1025),
    ],
)
def test_all_values_are_tried_if_there_are_trials_for_them(domains: dict[str, Any], n_trials: int, size: int) -> None:
    history = fresh(SearchSpace(domains), n_trials=n_trials)
    for grid, expected in ((Grid(), size), (Grid(2), Grid(2).size(history.problem.space))):
        assert [grid.ask(index, history) for index in range(expected + 1)].index(None) == expected
    remarks = Grid().remarks(history.problem)
    assert any("'n'" in remark for remark in remarks) == (size in (5, 10, 25))


@pytest.mark.parametrize(
    ("began_with", "n_trials", "tried"),
    [
        (5, 10, [1, 3, 6, 8, 10, 2, 4, 5, 7, 9]),
        (0, 10, [1, 3, 6, 8, 10, 2, 4, 5, 7, 9]),  # nobody gave a number
        (5, 9, [1, 3, 6, 8, 10]),
        (10, 12, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (10, 7, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (None, 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_a_grid_that_is_resumed_with_other_trials_tries_each_value_once(
    began_with: int | None, n_trials: int, tried: list[int]
) -> None:
    history = History(Problem(SearchSpace(x=Integer(1, 10)), n_trials=n_trials, began_with=began_with))
    grid = Grid()
    asked = [grid.ask(index, history) for index in range(len(tried) + 1)]
    assert asked == [*({"x": value} for value in tried), None]


def test_a_space_larger_than_any_number_is_counted_at_once() -> None:
    space = SearchSpace({f"x{i}": Integer(1, 2**32) for i in range(5)})
    assert n_configurations(space, 50) is None
    assert n_configurations(space, None) == 2**160


def test_a_huge_grid_costs_nothing() -> None:
    space = SearchSpace({f"x{i}": Float(0, 1) for i in range(60)})
    last = Grid(10).ask(10**60 - 1, fresh(space))
    assert last == {f"x{i}": 1.0 for i in range(60)}


def test_one_grid_serves_two_spaces() -> None:
    grid = Grid(2)
    assert grid.ask(1, fresh(LINE)) == {"x": 1.0}
    assert grid.ask(1, fresh(SearchSpace(y=[3, 4]))) == {"y": 4}


def test_sobol_fills_every_cell_and_takes_indexes_in_any_order() -> None:
    history = fresh(LINE)
    sobol = Sobol()
    in_order = [sobol.ask(index, history)["x"] for index in range(16)]
    assert sorted(int(x * 16) for x in in_order) == list(range(16))
    assert [sobol.ask(index, history)["x"] for index in (9, 3, 3, 15, 0)] == [
        in_order[index] for index in (9, 3, 3, 15, 0)
    ]
    assert Sobol().ask(7, history)["x"] == in_order[7]


def test_one_sobol_serves_two_seeds_and_a_space_of_constants() -> None:
    sobol = Sobol()
    assert sobol.ask(0, fresh(LINE, 0)) != sobol.ask(0, fresh(LINE, 1))
    assert sobol.ask(3, fresh(SearchSpace(a=1))) == {"a": 1}


def test_skopt_starts_with_sobol_points_until_enough_losses_are_finite() -> None:
    history = ended(LINE, [({"x": 0.1 * i}, math.inf if i % 2 else 1.0 * i) for i in range(8)])
    assert SkoptSearch(5).ask(8, history) == Sobol().ask(8, history)
    assert SkoptSearch(4).ask(8, history) != Sobol().ask(8, history)


@pytest.mark.parametrize("acquisition", ["EI", "LCB", "PI"])
def test_skopt_finds_the_bottom_of_a_bowl(acquisition: Any) -> None:
    x = SkoptSearch(acquisition=acquisition).ask(12, ended(LINE, bowl(12)))["x"]
    assert x == pytest.approx(0.8, abs=0.06)


@pytest.mark.conformance
def test_skopt_pairs_each_result_with_its_own_configuration() -> None:
    """Under asynchrony, ends come in another order than asks: here the last asked always ends first."""
    study = Study(LINE, SkoptSearch(6), direction="max", seed=1, n_trials=22)
    running: list[Trial] = []
    while len(study.trials) < 22:
        while len(running) < 4 and (trial := study.ask()):
            running.append(trial)
        last = running.pop()
        study.tell(last, -((last.config["x"] - 0.8) ** 2))
    assert study.best.config["x"] == pytest.approx(0.8, abs=0.02)
    late = [abs(trial.config["x"] - 0.8) for trial in study.trials[12:]]
    assert sorted(late)[len(late) // 2] < 0.2  # a model of shuffled pairs would not dwell there


def test_skopt_looks_elsewhere_while_a_configuration_runs() -> None:
    history = ended(LINE, bowl(12))
    first = SkoptSearch().ask(12, history)
    history.apply(Pending(12, first))
    assert abs(SkoptSearch().ask(13, history)["x"] - first["x"]) > 1e-3


def test_skopt_takes_each_trial_at_its_highest_step() -> None:
    plain = ended(LINE, bowl(12))
    promoted = fresh(LINE)
    for trial, (config, loss) in enumerate(bowl(12)):
        promoted.apply(Observation(trial, config, 0, 1.0 - loss))  # what the first rung said misleads
        promoted.apply(Pending(trial, config))
        promoted.apply(Observation(trial, config, 1, loss))
    assert SkoptSearch().ask(30, promoted) == SkoptSearch().ask(30, plain)


def test_skopt_does_not_care_how_far_a_training_diverged() -> None:
    first, *others = [
        SkoptSearch().ask(15, ended(LINE, [*bowl(12), ({"x": 0.05}, far), ({"x": 0.15}, math.nan)]))
        for far in (1e2, 1e30, 1e308)
    ]
    assert first["x"] == pytest.approx(0.8, abs=0.05)
    assert others == [first, first]


def test_skopt_models_every_kind_of_domain() -> None:
    space = SearchSpace(
        lr=Float(1e-4, 1, log=True),
        units=Integer(1, 512, log=True),
        depth=Integer(1, 4),
        act=["relu", "gelu", "silu"],
        momentum=Float(0, 0.9, step=0.3, when={"act": "relu"}),
        only=["one"],
        fixed=3,
    )

    def loss(config: Config) -> float:
        return float(math.log10(config["lr"]) ** 2 + config["depth"] + 3 * (config["act"] != "gelu"))

    history = fresh(space)
    drawn = [RandomSearch().ask(index, history) for index in range(30)]
    proposal = SkoptSearch().ask(30, ended(space, [(config, loss(config)) for config in drawn]))
    assert space.validate(proposal) == proposal
    assert loss(proposal) <= sorted(map(loss, drawn))[3]


def test_skopt_finds_the_last_configuration_that_does_not_run() -> None:
    space = SearchSpace(a=Integer(1, 400), b=["x"])
    history = fresh(space)
    for trial in range(400):
        if trial != 122:
            history.apply(Pending(trial, {"a": trial + 1, "b": "x"}))
    assert SkoptSearch().ask(400, history) == {"a": 123, "b": "x"}


def test_skopt_prefers_the_untried_and_then_repeats() -> None:
    space = SearchSpace(a=[1, 2, 3])
    history = ended(space, [({"a": 1}, 0.0), ({"a": 2}, 1.0)])
    assert SkoptSearch(1).ask(2, history) == {"a": 3}
    history.apply(Pending(2, {"a": 3}))
    assert SkoptSearch(1).ask(3, history)["a"] in (1, 2)
    history.apply(Pending(3, {"a": 1}))
    history.apply(Pending(4, {"a": 2}))
    assert SkoptSearch(1).ask(5, history)["a"] in (1, 2, 3)


def test_skopt_needs_no_model_where_there_is_nothing_to_choose() -> None:
    space = SearchSpace(a=["only"])
    assert SkoptSearch(1).ask(1, ended(space, [({"a": "only"}, 0.0)])) == {"a": "only"}


def test_a_large_model_keeps_the_best_and_the_newest() -> None:
    seen = [Observation(i, {"x": 0.5}, 1, math.nan if i % 3 else abs(i - 60.0)) for i in range(400)]
    kept = {observation.trial for observation in _most_telling(seen)}
    assert len(kept) == 150
    assert kept >= set(range(325, 400))
    assert kept >= set(range(0, 222, 3))


def test_skopt_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptimizerError, match=r"pip install 'maggy_like\[skopt\]'"):
        Study(LINE, SkoptSearch())
