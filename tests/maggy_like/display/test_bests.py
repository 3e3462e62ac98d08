"""The best values over the time."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from maggy_like.display import Snapshot
from maggy_like.display.progress import MAX_BESTS, Bests

VALUES = st.floats(allow_nan=False)


def test_a_long_search_keeps_its_first_and_its_newest_value(snap: Callable[..., Snapshot]) -> None:
    bests = Bests()
    for seconds in range(1, 1000):
        bests.take(snap(elapsed=float(seconds), best_value=seconds / 1000))
        assert bests.points[-1] == (seconds, seconds / 1000)
    assert bests.points[0] == (1.0, 0.001)
    assert len(bests.points) <= MAX_BESTS


def test_there_is_no_line_before_two_values(snap: Callable[..., Snapshot]) -> None:
    bests = Bests()
    bests.take(snap(best_value=None))
    bests.take(snap(best_value=1.0))
    bests.take(snap(best_value=1.0))
    assert bests.line(30.0, 8) == ""


@given(st.lists(st.tuples(VALUES.filter(lambda value: abs(value) < 1e9), VALUES), max_size=8), VALUES)
def test_the_line_has_its_width_for_all_values(points: list[tuple[float, float]], end: float) -> None:
    bests = Bests()
    bests.points = sorted(points)
    line = bests.line(end, 8)
    assert line == "" or sum(bar in "▁▂▃▄▅▆▇█" for bar in line) == 8
