from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_rung import LOSSES, NOT_FINITE, SEEDED, NaiveRung

from optimizers.schedulers.successive_halving import Rung, rung_levels


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
