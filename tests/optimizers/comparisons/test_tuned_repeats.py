from __future__ import annotations

import math

import pytest

from optimizers.comparisons.repeats import TunedRepeats, tuned_space
from optimizers.comparisons.sequential_tests import SequentialTests
from optimizers.core.base import History, Observation, Optimizer, Pending, Problem, Proposal
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import Grid, RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule
from optimizers.space import Config
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace
from optimizers.testing import check_optimizer

SPACE = SearchSpace(lr=Float(0.0, 1.0))
VARIANTS: dict[str, Config] = {"base": {"norm": True}, "without norm": {"norm": False}}
BEST = {"base": 0.8, "without norm": 0.2}


def search(optimizer: TunedRepeats, workers: int, *, failing: str = "") -> list[Config]:
    space = tuned_space(VARIANTS, len(optimizer.seeds), SPACE, first_seed=optimizer.seeds[0])
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
    space = tuned_space(VARIANTS, 3, SPACE)
    check_optimizer(lambda: TunedRepeats(VARIANTS, 3, SPACE, n_configs=3), spaces={"tuned": space})


@pytest.mark.parametrize(("workers", "first"), [(1, 0), (3, 10), (40, 0)])
def test_each_repeat_searches_anew_and_trains_its_best(workers: int, first: int) -> None:
    tried = search(TunedRepeats(VARIANTS, 3, SPACE, n_configs=6, first_seed=first), workers)
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
    tried = search(TunedRepeats(VARIANTS, 2, SPACE, n_configs=3), 1)
    assert [c["seed"] for c in tried] == [2] * 6 + [0] * 2 + [3] * 6 + [1] * 2


def test_all_variants_try_the_same_with_random_search() -> None:
    tried = search(TunedRepeats(VARIANTS, 1, SPACE, n_configs=4), 1)
    a, b = ({c["lr"] for c in tried if c["variant"] == name and c["seed"] == 1} for name in VARIANTS)
    assert a == b


def adaptive(bound: int = 8) -> TunedRepeats:
    tests = SequentialTests({"norm": {"without norm": 1.0, "base": -1.0}}, bound)
    return TunedRepeats(VARIANTS, bound, SPACE, n_configs=3, tests=tests)


def test_adaptive_repeats_are_tuned_too() -> None:
    check_optimizer(adaptive, spaces={"tuned": tuned_space(VARIANTS, 8, SPACE)})


@pytest.mark.parametrize("workers", [1, 5])
def test_no_repeat_is_searched_past_the_look_that_decided(workers: int) -> None:
    tried = search(adaptive(), workers)
    trained = [config for config in tried if config["seed"] < 8]
    repeats = max(config["seed"] for config in trained) + 1
    assert 3 <= repeats < 8
    assert len(trained) == 2 * repeats
    assert {config["seed"] for config in tried} == {*range(repeats), *range(8, 8 + repeats)}
    assert len(tried) == 2 * repeats * (3 + 1)
    assert {(c["variant"], c["seed"], c["lr"]) for c in tried} == {
        (c["variant"], c["seed"], c["lr"]) for c in search(adaptive(), 2)
    }


def test_an_optimizer_may_end_early() -> None:
    tried = search(TunedRepeats(VARIANTS, 2, SPACE, n_configs=9, optimizer=Grid(3)), 4)
    assert len(tried) == 2 * 2 * (3 + 1)


def test_a_search_without_a_result_is_trained_all_the_same_so_that_the_failure_counts() -> None:
    tried = search(TunedRepeats(VARIANTS, 2, SPACE, n_configs=3), 2, failing="without norm")
    assert sorted((c["variant"], c["seed"]) for c in tried if c["seed"] < 2) == [
        (name, seed) for name in VARIANTS for seed in range(2)
    ]


def test_constraints_hold() -> None:
    space = tuned_space(VARIANTS, 2, SPACE.where(lambda config: config["lr"] < 0.5))
    assert not space.allows({"variant": "base", "seed": 0, "norm": True, "lr": 0.7})


def test_mistakes_raise() -> None:
    with pytest.raises(OptimizerError, match="must not set \\['lr'\\], which are searched"):
        TunedRepeats({"base": {"lr": 0.1}}, 2, SPACE)


@pytest.mark.parametrize("tuner", [PBT(), ASHA(), MedianRule()])
def test_a_tuner_with_a_schedule_of_its_own_is_refused(tuner: Optimizer) -> None:
    with pytest.raises(
        OptimizerError, match=rf"must not have a schedule, got {type(tuner).__name__},.*optimizer='random'"
    ):
        TunedRepeats(VARIANTS, 2, SPACE, optimizer=tuner)


class Proposes(RandomSearch):
    """Random search that answers with proposals."""

    def __init__(self, parent: int | None) -> None:
        self.parent = parent

    def ask(self, index: int, history: History) -> Proposal:
        return Proposal({"lr": index / 10}, self.parent)


def test_a_proposal_of_a_tuner_is_its_configuration() -> None:
    tried = search(TunedRepeats(VARIANTS, 1, SPACE, n_configs=4, optimizer=Proposes(None)), 1)
    assert [c["lr"] for c in tried if c["variant"] == "base" and c["seed"] == 1] == [0.0, 0.1, 0.2, 0.3]


def test_a_tuner_that_goes_on_from_other_trials_is_refused() -> None:
    with pytest.raises(OptimizerError, match=r"Proposes continues trial 0.*optimizer='random'"):
        search(TunedRepeats(VARIANTS, 1, SPACE, optimizer=Proposes(0)), 1)
