"""Rungs beside ones that are written to be read: all results in a list, sorted anew for each question."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import Decision, FullBudget, Problem, Scheduler
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.successive_halving import (
    BracketScheduler,
    PromotionScheduler,
    Rung,
    StoppingScheduler,
    bracket_shares,
    rung_levels,
)
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

NOT_FINITE = (math.nan, math.inf, -math.inf)
SEEDED = settings(max_examples=examples(60))


# Few distinct values, so that ties are common.
LOSSES = st.sampled_from([0.0, 1.0, 2.0, 3.0, *NOT_FINITE]) | st.floats(allow_nan=False)


class NaiveRung:
    """A rung as the module's docstring has it: all results in a list, sorted anew for each question."""

    def __init__(self, eta: int) -> None:
        self.eta = eta
        self.results: list[tuple[float, int, int]] = []
        self.at_rest: set[int] = set()
        self.promoted: set[int] = set()

    def record(self, trial: int, loss: float) -> bool:
        loss = loss if math.isfinite(loss) else math.inf
        self.results.append((loss, len(self.results), trial))
        return trial in self.best()

    @property
    def quota(self) -> int:
        return len(self.results) // self.eta

    def best(self) -> list[int]:
        """The finite ones of the best floor(n / eta), best first."""
        return [trial for loss, _, trial in sorted(self.results)[: self.quota] if loss < math.inf]

    def candidate(self) -> int | None:
        if len(self.promoted) >= self.quota:
            return None
        return next((trial for trial in self.best() if trial in self.at_rest - self.promoted), None)

    def best_paused(self) -> int | None:
        able = self.at_rest - self.promoted
        rested = sorted(result for result in self.results if result[2] in able and result[0] < math.inf)
        return rested[0][2] if rested else None


@pytest.mark.parametrize(
    ("max_budget", "min_budget", "eta", "levels"),
    [
        (1000, 1, 10, (1, 10, 100, 1000)),  # log(1000) / log(10) is 2.9999999999999996
        (243, 1, 3, (1, 3, 9, 27, 81, 243)),
        (50, 1, 3, (1, 5, 16, 50)),
        (50, 5, 3, (5, 16, 50)),
        (50, 6, 3, (16, 50)),
        (27, 1, 3, (1, 3, 9, 27)),
        (2, 1, 3, (2,)),
        (1, 1, 3, (1,)),
        (10**30, 10**27, 10, (10**27, 10**28, 10**29, 10**30)),
    ],
)
def test_rungs_are_anchored_at_the_maximum_budget(
    max_budget: int, min_budget: int, eta: int, levels: tuple[int, ...]
) -> None:
    assert rung_levels(max_budget, min_budget, eta) == levels


@SEEDED
@given(st.integers(1, 10**40), st.integers(1, 10**6), st.integers(2, 10))
def test_rungs_are_whole_fractions_down_to_the_minimum(max_budget: int, min_budget: int, eta: int) -> None:
    min_budget = min(min_budget, max_budget)
    levels = rung_levels(max_budget, min_budget, eta)
    assert levels == tuple(max_budget // eta**k for k in reversed(range(len(levels))))
    assert levels[0] // eta < min_budget <= levels[0]


@SEEDED
@given(st.integers(2, 4), st.lists(LOSSES | st.integers(0, 20) | st.none(), min_size=20, max_size=60))
def test_a_rung_agrees_with_a_sorted_list(eta: int, moves: list[float | int | None]) -> None:
    rung, naive = Rung(eta), NaiveRung(eta)
    for move in moves:
        if isinstance(move, float):
            trial = len(naive.results)
            assert rung.record(trial, move) == naive.record(trial, move)
        elif move is None and (candidate := naive.candidate()) is not None:
            rung.promote(candidate)
            naive.promoted.add(candidate)
        elif move is not None and move < len(naive.results):
            rung.pause(move)
            naive.at_rest.add(move)
        assert rung.candidate() == naive.candidate()
        assert rung.promoted == len(naive.promoted) <= naive.quota
    assert len(rung) == len(naive.results)


class Counted(float):
    """A loss that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)

    def __neg__(self) -> Counted:
        return Counted(-float(self))


@pytest.mark.parametrize(
    "order", [lambda n: -n, lambda n: n, lambda n: n * 7919 % 4096], ids=["improving", "worsening", "mixed"]
)
def test_a_result_costs_the_same_however_many_came_before(order: Callable[[int], int]) -> None:
    rung = Rung(3)
    costs = []
    for trial in range(4096):
        before = Counted.compared
        rung.record(trial, Counted(order(trial)))
        rung.pause(trial)
        if (candidate := rung.candidate()) is not None:
            rung.promote(candidate)
        costs.append(Counted.compared - before)
    early, late = sum(costs[256:512]), sum(costs[-256:])
    assert late <= 2 * early  # a scan of all results would cost twelve times as much
    assert late <= 256 * 8 * math.log2(4096)


@pytest.mark.parametrize("loss", NOT_FINITE)
def test_a_loss_that_is_not_finite_ranks_worst_and_never_passes(loss: float) -> None:
    rung = Rung(2)
    assert [rung.record(0, loss), rung.record(1, 5.0)] == [False, True]
    rung = Rung(2)
    assert [rung.record(trial, loss) for trial in range(4)] == [False] * 4
    for trial in range(4):
        rung.pause(trial)
    assert rung.candidate() is None


# -- brackets -------------------------------------------------------------------------------------
LINE = SearchSpace(x=Float(0, 1))


def test_shares_are_those_of_hyperband() -> None:
    """The first column of table 1 in the paper: R = 81, eta = 3."""
    sizes = np.array([81, 34, 15, 8, 5])
    assert bracket_shares(5, 3, 5) == pytest.approx((sizes / sizes.sum()).tolist())
    assert bracket_shares(5, 3, 2) == pytest.approx([81 / 115, 34 / 115])
    assert bracket_shares(1, 3, 1) == [1.0]


def brackets_of(seed: int, n: int, shares: list[float]) -> list[int]:
    inner: list[Scheduler] = [FullBudget(step + 1) for step in range(len(shares))]
    scheduler = BracketScheduler(inner, shares, seed)
    return [inner.index(scheduler.bracket(trial)) for trial in range(n)]


def test_trials_fall_into_brackets_by_their_shares() -> None:
    shares = bracket_shares(4, 3, 4)
    drawn = brackets_of(0, 1000, shares)
    counts = Counter(drawn)
    for bracket, share in enumerate(shares):
        assert abs(counts[bracket] - 1000 * share) < 4.0 * math.sqrt(1000 * share * (1.0 - share))
    assert brackets_of(0, 1000, shares) == drawn != brackets_of(1, 1000, shares)


def test_a_bracket_does_not_depend_on_which_trials_were_asked_about() -> None:
    inner: list[Scheduler] = [FullBudget(1), FullBudget(2)]
    some, all_of_them = (BracketScheduler(inner, [0.5, 0.5], 3) for _ in range(2))
    expected = [all_of_them.bracket(trial) for trial in range(20)]
    assert [some.bracket(trial) for trial in reversed(range(20))] == expected[::-1]


def test_each_bracket_promotes_its_own_up_to_its_quota() -> None:
    study = Study(LINE, ASHA(sampler="random", brackets=None), max_budget=9, direction="min", seed=2, n_trials=90)
    draw = random.Random(0)
    running: list[Trial] = []
    while (trial := study.ask()) is not None or running:
        if trial is not None:
            running.append(trial)
        if trial is None or len(running) == 4:
            done = running.pop(draw.randrange(len(running)))
            study.tell(done, done.config["x"])
    assert isinstance(study.scheduler, BracketScheduler)
    members: dict[Scheduler, list[Trial]] = {}
    for trial in study.trials:
        members.setdefault(study.scheduler.bracket(trial.id), []).append(trial)
    assert {len(bracket.rungs) for bracket in members if isinstance(bracket, PromotionScheduler)} == {1, 2, 3}
    for bracket, trials in members.items():
        assert isinstance(bracket, PromotionScheduler)
        levels = [1, 3, 9][3 - len(bracket.rungs) :]
        counts = [sum(trial.step >= level for trial in trials) for level in levels]
        assert [len(rung) for rung in bracket.rungs] == counts
        assert [rung.promoted for rung in bracket.rungs] == [*counts[1:], 0]
        assert all(above == below // 3 for below, above in pairwise(counts))
        top = min(trials, key=lambda trial: float(trial.config["x"]))
        assert top.state is TrialState.COMPLETED


@pytest.mark.parametrize(("brackets", "expected"), [(1, 1), (2, 2), (4, 4), (9, 4), (None, 4)])
def test_there_are_at_most_as_many_brackets_as_rungs(brackets: int | None, expected: int) -> None:
    scheduler = ASHA(sampler="random", mode="stopping", brackets=brackets).scheduler(Problem(LINE, max_budget=27))
    if expected == 1:
        assert isinstance(scheduler, StoppingScheduler)
        return
    assert isinstance(scheduler, BracketScheduler)
    grants = {scheduler.grant(trial).milestones for trial in range(200)}
    assert grants == set([(1, 3, 9), (3, 9), (9,), ()][:expected])


# -- promotion ------------------------------------------------------------------------------------
def promotion_study(*, eta: int = 3, max_budget: int = 9, n_trials: int = 100, **rest: Any) -> Study:
    optimizer = ASHA(sampler="random", eta=eta, mode="promotion")
    return Study({"x": Float(0, 1)}, optimizer, max_budget=max_budget, n_trials=n_trials, **rest)


def start(study: Study, n: int) -> list[Trial]:
    """Start ``n`` attempts beside each other."""
    trials = [study.ask() for _ in range(n)]
    return [trial for trial in trials if trial is not None]


@SEEDED
@given(
    direction=st.sampled_from(["max", "min"]),
    eta=st.integers(2, 4),
    width=st.integers(1, 6),
    draw=st.randoms(use_true_random=False),
)
def test_promoted_is_the_best_at_rest_and_more_than_the_quota_only_at_the_close(
    direction: Literal["max", "min"], eta: int, width: int, draw: random.Random
) -> None:
    study = promotion_study(eta=eta, max_budget=eta**2, n_trials=20, direction=direction)
    assert isinstance(study.scheduler, PromotionScheduler)
    levels = rung_levels(eta**2, 1, eta)
    rungs = [NaiveRung(eta) for _ in levels]
    running: list[Trial] = []
    at_the_close = [0 for _ in levels]
    while True:
        trial = None
        if len(running) < width and (not running or draw.random() < 0.6):
            due = [rung.candidate() for rung in reversed(rungs[:-1])]
            expected = next((number for number in due if number is not None), None)
            if (trial := study.ask()) is None:
                assert expected is None
                if not running:
                    break
            elif expected is not None or trial.attempt > 1:
                if expected is None:
                    assert not running
                    assert study.size == 20
                    assert not any(is_well_trained(study, other) for other in study.trials)
                    rested = [rung.best_paused() for rung in reversed(rungs[:-1])]
                    expected = next(number for number in rested if number is not None)
                    at_the_close[levels.index(trial.budget) - 1] += 1
                assert trial.id == expected
                rungs[levels.index(trial.budget) - 1].promoted.add(trial.id)
        if trial is not None:
            running.append(trial)
        else:
            end(study, running.pop(draw.randrange(len(running))), rungs, draw)
        for rung, naive, extra in zip(study.scheduler.rungs, rungs, at_the_close, strict=True):
            assert len(rung) == len(naive.results)
            assert rung.promoted == len(naive.promoted) <= naive.quota + extra
    rests = any(rung.best_paused() is not None for rung in rungs[:-1])
    assert not rests or any(is_well_trained(study, trial) for trial in study.trials)


def is_well_trained(study: Study, trial: Trial) -> bool:
    """Whether a trial was trained to the end, and neither failed nor diverged."""
    ended = trial.state is TrialState.COMPLETED and trial.step >= study.problem.max_budget
    return ended and trial.value is not None and math.isfinite(trial.value)


def end(study: Study, trial: Trial, rungs: list[NaiveRung], draw: random.Random) -> None:
    """End an attempt in one of the ways it can, and enter it where it belongs."""
    rung = rungs[rung_levels(study.problem.max_budget, 1, rungs[0].eta).index(trial.budget)]
    value = draw.choice([0.0, 1.0, 2.0, *NOT_FINITE])
    ending = draw.choice(["reports", "returns", "reports", "returns", "raises", "reports and raises"])
    if ending.startswith("reports"):
        study.report(trial, trial.budget, value)
    if ending.endswith("raises"):
        study.fail(trial)
    else:
        study.tell(trial, value if ending == "returns" else None)
        rung.at_rest.add(trial.id)
    loss = math.inf if ending == "raises" else -value if study.direction == "max" else value
    rung.record(trial.id, loss)


def test_the_first_to_arrive_does_not_pass_because_it_is_first() -> None:
    study = promotion_study()
    numbers = []
    for value in (0.5, 0.1, 0.9):
        trial = study.ask()
        numbers.append(trial.id)
        study.tell(trial, value)
    assert numbers == [0, 1, 2]
    promoted = study.ask()
    assert (promoted.id, promoted.attempt, promoted.budget) == (2, 2, 3)


def test_later_and_better_results_do_not_enlarge_the_quota() -> None:
    study = promotion_study(eta=2, max_budget=2)
    first, second, third, fourth = start(study, 4)
    study.tell(first, 0.1)
    study.tell(second, 0.0)
    assert study.ask() is first
    study.tell(third, 0.9)
    assert study.next_promotion() is None  # the best of three, but one of floor(3 / 2) was promoted
    study.tell(fourth, 0.8)
    assert study.ask() is third
    assert study.next_promotion() is None  # fourth is among the best two of four, two were promoted


def test_ties_go_to_the_result_that_arrived_first() -> None:
    study = promotion_study()
    for trial in reversed(start(study, 3)):
        study.tell(trial, 0.5)
    assert study.next_promotion() is study.trials[2]


def test_the_highest_rung_is_served_first() -> None:
    study = promotion_study(eta=2, max_budget=4)
    trials = start(study, 6)
    for trial in trials[:4]:
        study.tell(trial, float(trial.id))
    for expected in (3, 2):
        assert study.ask() is trials[expected]
        study.tell(trials[expected], float(expected))
    for trial in trials[4:]:
        study.tell(trial, 9.0)
    # One is due in each rung: of rung 0 trial 4, of rung 1 trial 3.
    assert study.ask() is trials[3]
    assert trials[3].budget == 4
    assert study.ask() is trials[4]


def test_a_trial_at_rest_is_no_candidate_before_it_has_left_its_worker() -> None:
    study = promotion_study(eta=2, max_budget=2)
    first, second = start(study, 2)
    study.report(first, 1, 0.9)
    study.tell(second, 0.1)
    assert study.next_promotion() is None
    study.tell(first)
    assert study.next_promotion() is first


def test_a_rung_takes_a_result_once() -> None:
    scheduler = PromotionScheduler((2, 6, 18), (3, 3, 3))
    for step in (1, 2, 3, 7, 20):
        scheduler.report(0, step, 1.0)
    scheduler.fail(0)
    assert [len(rung) for rung in scheduler.rungs] == [1, 0, 0]


# -- stopping ---------------------------------------------------------------------------------------


CONTINUE, STOP = Decision.CONTINUE, Decision.STOP


def test_less_than_a_third_go_on_whatever_the_order() -> None:
    draw = random.Random(0)
    passed, orders = 0, 2000
    for _ in range(orders):
        rung = Rung(3)
        passed += sum(rung.record(trial, draw.random()) for trial in range(10))
    share = passed / (10 * orders)
    # Of n results in random order, the newest is among the best floor(n / 3) with probability floor(n / 3) / n.
    assert share == pytest.approx(sum(n // 3 / n for n in range(1, 11)) / 10, abs=0.01)
    assert share < 1 / 3


def test_a_trial_goes_on_only_if_it_is_in_the_quota_as_it_arrives() -> None:
    scheduler = StoppingScheduler((1, 3, 9), (3, 3, 3))
    losses = [1.0, 2.0, 3.0, 0.5, 0.7, 0.6, 0.6]
    decisions = [scheduler.report(trial, 1, loss) for trial, loss in enumerate(losses)]
    # The first is the best so far. The sixth is the second best of six; the last equals it, but came later.
    assert decisions == [CONTINUE, STOP, STOP, CONTINUE, STOP, CONTINUE, STOP]


@SEEDED
@given(st.integers(2, 4), st.lists(st.tuples(LOSSES, st.booleans()), min_size=1, max_size=30))
def test_the_best_so_far_that_is_well_is_never_stopped(eta: int, arrivals: list[tuple[float, bool]]) -> None:
    scheduler = StoppingScheduler((1, 3), (eta, eta))
    naive = NaiveRung(eta)
    well: list[float] = []
    for trial, (loss, fails) in enumerate(arrivals):
        in_quota = naive.record(trial, loss)
        is_best = math.isfinite(loss) and all(loss < other for other in well)
        assert scheduler.report(trial, 1, loss) is (CONTINUE if in_quota or is_best else STOP)
        if fails:
            scheduler.fail(trial)
        elif math.isfinite(loss):
            well.append(loss)


def test_a_skipped_rung_is_not_filled_backwards() -> None:
    scheduler = StoppingScheduler((1, 3, 9), (2, 2, 2))
    for step in (5, 6, 8):
        scheduler.report(0, step, 1.0)
        assert [len(rung) for rung in scheduler.rungs] == [0, 1, 0]
    assert scheduler.report(1, 4, 0.5) is CONTINUE
    assert scheduler.report(1, 30, 0.5) is CONTINUE
    assert [len(rung) for rung in scheduler.rungs] == [0, 2, 1]


def test_no_trial_stops_at_the_top_nor_between_rungs() -> None:
    scheduler = StoppingScheduler((2, 6), (3, 3))
    assert scheduler.report(0, 1, 1.0) is CONTINUE
    assert scheduler.report(0, 6, math.nan) is CONTINUE
    assert [len(rung) for rung in scheduler.rungs] == [0, 1]


def test_a_crash_is_the_worst_of_the_rung_it_was_on_its_way_to() -> None:
    scheduler = StoppingScheduler((1, 3, 9), (2, 2, 2))
    scheduler.fail(0)
    assert scheduler.report(1, 1, 5.0) is CONTINUE
    scheduler.fail(1)
    assert [len(rung) for rung in scheduler.rungs] == [2, 1, 0]
