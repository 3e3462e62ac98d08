from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from optimizers.core.base import FullBudget, Problem, Scheduler
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.successive_halving import (
    BracketScheduler,
    PromotionScheduler,
    StoppingScheduler,
    bracket_shares,
)
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

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
