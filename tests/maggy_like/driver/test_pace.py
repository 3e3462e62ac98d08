"""What is drawn for the reader takes a share of the driver's time, however large the gang is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maggy_like.driver.loop import LONGEST, Pace


def test_what_takes_no_time_is_done_at_each_interval() -> None:
    pace = Pace(0.1, 0.02)
    done = 0
    for now in range(1000):  # milliseconds
        if pace.is_due(now / 1000):
            pace.took(now / 1000, now / 1000)
            done += 1
    assert done == 10


@given(st.floats(1e-3, 0.04), st.floats(0.01, 0.5))
def test_what_takes_long_is_done_as_seldom_as_its_share_of_the_time_says(seconds: float, share: float) -> None:
    pace, now = Pace(0.1, share), 0.0
    pace.took(now, now + seconds)
    assert not pace.is_due(now + seconds + 0.99 * seconds / share)
    assert pace.is_due(now + seconds + 1.01 * seconds / share + 0.1)


def test_a_process_that_was_stopped_meanwhile_goes_on_soon() -> None:
    pace = Pace(0.1, 0.02)
    pace.took(0.0, 3600.0)
    assert pace.is_due(3600.0 + LONGEST)
