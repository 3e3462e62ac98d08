"""The plan of an epoch: every row once, equal steps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.loader.windows import WindowPlan

GROUPS = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@given(
    groups=GROUPS,
    ranks=st.integers(1, 7),
    more=st.integers(0, 20),
    drop_last=st.booleans(),
    least_share=st.integers(0, 3),
    seed=st.none() | st.integers(0, 5),
)
def test_each_row_is_read_once_by_one_rank(
    groups: list[int], ranks: int, more: int, drop_last: bool, least_share: int, seed: int | None
) -> None:
    batch_size = ranks + more
    assume(sum(groups) >= (batch_size if drop_last else ranks))
    plan = WindowPlan(groups, batch_size, ranks, drop_last, least_share)
    order = plan.order(seed, epoch=3)
    assert sorted(order) == list(range(len(groups)))
    runs = [plan.run(rank) for rank in range(ranks)]
    assert [start for start, _ in runs] == [0, *(stop for _, stop in runs[:-1])]
    assert runs[-1][1] == plan.rows == (sum(groups) // batch_size * batch_size if drop_last else sum(groups))
    rows = [(piece.group, row) for run in runs for piece in plan.pieces(order, *run) for row in range(*piece[1:])]
    assert len(set(rows)) == len(rows) == plan.rows
    assert all(0 <= row < groups[group] for group, row in rows)


@given(
    rows=st.integers(1, 200),
    ranks=st.integers(1, 7),
    more=st.integers(0, 20),
    least_share=st.integers(0, 3),
    buffer=st.integers(1, 50),
)
def test_steps_and_windows_are_the_same_on_all_ranks(
    rows: int, ranks: int, more: int, least_share: int, buffer: int
) -> None:
    assume(rows >= ranks)
    plan = WindowPlan([rows], ranks + more, ranks, least_share=least_share)
    for step in range(plan.steps):
        shares = [plan.share(step, rank) for rank in range(ranks)]
        assert sum(share.samples for share in shares) == shares[0].total > 0
        assert max(shares).samples - min(shares).samples <= 1
        if min(rows, ranks + more) >= least_share * ranks:
            assert min(shares).samples >= least_share
    windows = plan.windows(buffer)
    assert [*itertools.chain(*windows)] == list(range(plan.steps))
    for window, rank in itertools.product(windows, range(ranks)):
        assert plan.rows_before(window.stop, rank) > plan.rows_before(window.start, rank)  # so a stand-in is at hand


def test_epochs_have_orders_of_their_own() -> None:
    plan = WindowPlan([1] * 20, batch_size=4, ranks=1)
    assert plan.order(0, 1) == plan.order(0, 1) != plan.order(0, 2)
    assert plan.order(None, 7) == list(range(20))


def test_too_few_rows_are_told() -> None:
    with pytest.raises(DataError, match="enough rows for 3 ranks, got 2"):
        WindowPlan([2], batch_size=8, ranks=3)
    with pytest.raises(DataError, match=r"enough rows for .*, got 0"):
        WindowPlan([], batch_size=8, ranks=1)
    with pytest.raises(DataError, match=r"enough rows for a batch of 8 \(drop_last=True\), got 5"):
        WindowPlan([5], batch_size=8, ranks=2, drop_last=True)
    with pytest.raises(
        ConfigError, match=r"batch_size, which is that of all ranks together, must be at least 4, got 3"
    ):
        WindowPlan([5], batch_size=3, ranks=4)
