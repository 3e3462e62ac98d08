from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_rung import LOSSES, SEEDED, NaiveRung

from optimizers.core.base import Decision
from optimizers.schedulers.successive_halving import Rung, StoppingScheduler

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
