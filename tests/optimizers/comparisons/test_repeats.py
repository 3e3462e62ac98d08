from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from paired_losses import CONTRASTS, losses_of

from optimizers.comparisons.paired_tests import Losses
from optimizers.comparisons.repeats import AdaptiveRepeats, Repeats, TunedRepeats, repeats_space, tuned_space
from optimizers.comparisons.sequential_tests import SequentialTests
from optimizers.core.base import WAIT, History, Observation, Pending, Problem, Proposal
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import Grid, RandomSearch
from optimizers.space import Config
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace
from optimizers.testing import check_optimizer

VARIANTS: dict[str, Config] = {
    "base": {"dropout": 0.2},
    "without A": {"dropout": 0.2},
    "without dropout": {"dropout": 0.0},
}


def search(
    optimizer: AdaptiveRepeats, losses: Losses, order: np.random.Generator, workers: int = 5
) -> set[tuple[str, int]]:
    """Run to the end, trials ending in any order; returns what was tried, repeats counted from 0."""
    first = optimizer.seeds[0]
    history = History(Problem(repeats_space(optimizer.variants, optimizer.tests.bound, first_seed=first)))
    tried: list[tuple[str, int]] = []
    for _ in itertools.count():
        while len(history.pending) < workers and isinstance(config := optimizer.ask(len(tried), history), dict):
            history.apply(Pending(len(tried), config))
            tried.append((config["variant"], config["seed"] - first))
        if not history.pending:
            break
        trial = int(order.choice(sorted(history.pending)))
        history.apply(Observation(trial, history.pending[trial], 1, losses[tried[trial]]))
    assert optimizer.ask(len(tried), history) is None
    assert len(set(tried)) == len(tried)
    return set(tried)


def test_repeats_keep_the_contract() -> None:
    check_optimizer(lambda: Repeats(VARIANTS, 4), spaces={"ablation": repeats_space(VARIANTS, 4)})


def test_adaptive_repeats_keep_the_contract() -> None:
    space = repeats_space(VARIANTS, 6)
    check_optimizer(lambda: AdaptiveRepeats(VARIANTS, CONTRASTS, 6), spaces={"ablation": space})


@pytest.mark.parametrize("first", [0, 100])
def test_all_variants_of_a_seed_come_together(first: int) -> None:
    optimizer, problem = Repeats(VARIANTS, 2, first_seed=first), Problem(repeats_space(VARIANTS, 2, first_seed=first))
    optimizer.validate(problem)
    asked = [optimizer.ask(index, History(problem)) for index in range(7)]
    assert [(a["variant"], a["seed"], a["dropout"]) for a in asked if isinstance(a, dict)] == [
        (name, seed, config["dropout"]) for seed in (first, first + 1) for name, config in VARIANTS.items()
    ]
    assert asked[6] is None


@settings(max_examples=examples(20))
@given(st.integers(0, 10_000), st.integers(1, 9), st.sampled_from([0, 7]))
def test_neither_the_order_of_arrival_nor_the_first_seed_changes_a_decision(
    order: int, workers: int, first: int
) -> None:
    losses = losses_of({"without A": 4.0, "without dropout": 0.0}, 12)
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 12, first_seed=first)
    optimizer.validate(Problem(repeats_space(VARIANTS, 12, first_seed=first)))
    tried = search(optimizer, losses, np.random.default_rng(order), workers)
    found = optimizer.tests.compare({key: losses[key] for key in tried})
    assert found == optimizer.tests.compare(losses)
    assert found["A"].differs
    assert not found["dropout"].differs


def test_a_decided_comparison_gets_no_more_seeds() -> None:
    losses = losses_of({"without A": 10.0, "without dropout": 0.8}, 20)
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 20)
    tried = search(optimizer, losses, np.random.default_rng(0), workers=1)
    count = {name: sum(variant == name for variant, _ in tried) for name in VARIANTS}
    assert count["without A"] < 12
    assert count["base"] == max(count.values())
    assert len(tried) < 60


def test_a_variant_that_always_fails_is_given_up() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 20)
    losses |= {("without A", seed): math.inf for seed in range(20)}
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 20)
    tried = search(optimizer, losses, np.random.default_rng(0))
    assert sum(variant == "without A" for variant, _ in tried) <= 4
    found = optimizer.tests.compare({key: losses[key] for key in tried})["A"]
    assert (found.seeds, found.dropped, found.corrected, found.differs) == (0, 3, None, False)


def test_with_nothing_to_do_it_waits() -> None:
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 6)
    history = History(Problem(repeats_space(VARIANTS, 6)))
    for index in range(9):  # the seeds before the first look
        config = optimizer.ask(index, history)
        assert isinstance(config, dict)
        history.apply(Pending(index, config))
    assert optimizer.ask(9, history) is WAIT


# -- tuned repeats ----------------------------------------------------------------------------------


SPACE = SearchSpace(lr=Float(0.0, 1.0))
TUNED: dict[str, Config] = {"base": {"norm": True}, "without norm": {"norm": False}}
BEST = {"base": 0.8, "without norm": 0.2}


def tuned_search(optimizer: TunedRepeats, workers: int, *, failing: str = "") -> list[Config]:
    space = tuned_space(TUNED, len(optimizer.seeds), SPACE, first_seed=optimizer.seeds[0])
    history = History(Problem(space, seed=1))
    tried: list[Config] = []
    while True:
        while len(history.pending) < workers and isinstance(config := optimizer.ask(len(tried), history), dict):
            history.apply(Pending(len(tried), config))
            space.validate(config)
            tried.append(config)
        if not history.pending:
            return tried
        trial, config = max(history.pending.items())  # the newest ends first
        loss = math.inf if config["variant"] == failing else abs(config["lr"] - BEST[config["variant"]])
        history.apply(Observation(trial, config, 1, loss))


def test_it_keeps_the_contract() -> None:
    space = tuned_space(TUNED, 3, SPACE)
    check_optimizer(lambda: TunedRepeats(TUNED, 3, SPACE, n_configs=3), spaces={"tuned": space})


@pytest.mark.parametrize(("workers", "first"), [(1, 0), (3, 10), (40, 0)])
def test_each_repeat_searches_anew_and_trains_its_best(workers: int, first: int) -> None:
    tried = tuned_search(TunedRepeats(TUNED, 3, SPACE, n_configs=6, first_seed=first), workers)
    assert len(tried) == 2 * 3 * (6 + 1)
    for name, best in BEST.items():
        searches = [
            {c["lr"] for c in tried if c["variant"] == name and c["seed"] == first + 3 + repeat} for repeat in range(3)
        ]
        assert len(set.union(*searches)) == 18  # no two repeats have a configuration in common
        trained = [c["lr"] for repeat in range(3) for c in tried if (c["variant"], c["seed"]) == (name, first + repeat)]
        assert trained == [min(found, key=lambda lr: abs(lr - best)) for found in searches]
    assert {c["norm"] for c in tried if c["variant"] == "without norm"} == {False}


def test_a_repeat_is_whole_before_the_next_search_when_one_worker_is_there() -> None:
    tried = tuned_search(TunedRepeats(TUNED, 2, SPACE, n_configs=3), 1)
    assert [c["seed"] for c in tried] == [2] * 6 + [0] * 2 + [3] * 6 + [1] * 2


def test_all_variants_try_the_same_with_random_search() -> None:
    tried = tuned_search(TunedRepeats(TUNED, 1, SPACE, n_configs=4), 1)
    a, b = ({c["lr"] for c in tried if c["variant"] == name and c["seed"] == 1} for name in TUNED)
    assert a == b


def adaptive(bound: int = 8) -> TunedRepeats:
    tests = SequentialTests({"norm": {"without norm": 1.0, "base": -1.0}}, bound)
    return TunedRepeats(TUNED, bound, SPACE, n_configs=3, tests=tests)


def test_adaptive_repeats_are_tuned_too() -> None:
    check_optimizer(adaptive, spaces={"tuned": tuned_space(TUNED, 8, SPACE)})


@pytest.mark.parametrize("workers", [1, 5])
def test_no_repeat_is_searched_past_the_look_that_decided(workers: int) -> None:
    tried = tuned_search(adaptive(), workers)
    trained = [config for config in tried if config["seed"] < 8]
    repeats = max(config["seed"] for config in trained) + 1
    assert 3 <= repeats < 8
    assert len(trained) == 2 * repeats
    assert {config["seed"] for config in tried} == {*range(repeats), *range(8, 8 + repeats)}
    assert len(tried) == 2 * repeats * (3 + 1)
    assert {(c["variant"], c["seed"], c["lr"]) for c in tried} == {
        (c["variant"], c["seed"], c["lr"]) for c in tuned_search(adaptive(), 2)
    }


def test_an_optimizer_may_end_early() -> None:
    tried = tuned_search(TunedRepeats(TUNED, 2, SPACE, n_configs=9, optimizer=Grid(3)), 4)
    assert len(tried) == 2 * 2 * (3 + 1)


def test_a_search_without_a_result_is_trained_all_the_same_so_that_the_failure_counts() -> None:
    tried = tuned_search(TunedRepeats(TUNED, 2, SPACE, n_configs=3), 2, failing="without norm")
    assert sorted((c["variant"], c["seed"]) for c in tried if c["seed"] < 2) == [
        (name, seed) for name in TUNED for seed in range(2)
    ]


def test_constraints_hold() -> None:
    space = tuned_space(TUNED, 2, SPACE.where(lambda config: config["lr"] < 0.5))
    assert not space.allows({"variant": "base", "seed": 0, "norm": True, "lr": 0.7})


class Proposes(RandomSearch):
    """Random search that answers with proposals."""

    def __init__(self, parent: int | None) -> None:
        self.parent = parent

    def ask(self, index: int, history: History) -> Proposal:
        return Proposal({"lr": index / 10}, self.parent)


def test_a_proposal_of_a_tuner_is_its_configuration() -> None:
    tried = tuned_search(TunedRepeats(TUNED, 1, SPACE, n_configs=4, optimizer=Proposes(None)), 1)
    assert [c["lr"] for c in tried if c["variant"] == "base" and c["seed"] == 1] == [0.0, 0.1, 0.2, 0.3]


def test_a_tuner_that_goes_on_from_other_trials_is_refused() -> None:
    with pytest.raises(OptimizerError, match=r"Proposes continues trial 0.*optimizer='random'"):
        tuned_search(TunedRepeats(TUNED, 1, SPACE, optimizer=Proposes(0)), 1)
