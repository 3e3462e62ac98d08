from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.rpc.client import HEARSAY, HEARTBEAT, TALK, Heartbeat

SAID = st.lists(st.tuples(st.sampled_from(["speak", "hear"]), st.floats(0.0, 3.0)), max_size=60)


@given(said=SAID)
def test_a_worker_is_never_silent_for_long_and_never_without_an_answer_for_long(said: list[tuple[str, float]]) -> None:
    """Beats at the moments at which they are due, among all else that is said and heard."""
    now = spoke = asked = 0.0
    heartbeat = Heartbeat(now)
    for what, pause in said:
        until = now + pause
        while heartbeat.due <= until:
            now = max(now, heartbeat.due)
            assert now - spoke <= TALK * HEARTBEAT + 1e-9
            assert now - max(asked, heartbeat.heard) <= HEARSAY * HEARTBEAT + 1e-9
            heartbeat.beat(now)
            spoke = asked = now
        now = until
        if what == "speak":
            heartbeat.spoke(now)
            spoke = now
        else:
            heartbeat.heard = now
    assert now - spoke <= TALK * HEARTBEAT + 1e-9


def beats(interval: float, seconds: int, *, is_answered: bool = True) -> int:
    """How many beats a worker sends that says something each ``interval``."""
    heartbeat, count, now, said = Heartbeat(0.0), 0, 0.0, 0.0
    while now < seconds:
        if heartbeat.due <= said:
            now = max(now, heartbeat.due)
            heartbeat.beat(now)
            count += 1
            if is_answered:
                heartbeat.heard = now
        else:
            now = said
            heartbeat.spoke(now)
            said += interval
    return count


def test_a_worker_that_says_nothing_beats_each_heartbeat() -> None:
    assert beats(1e9, 60) == pytest.approx(60, abs=2)


def test_one_that_reports_each_second_beats_only_for_an_answer() -> None:
    assert beats(1.0, 60) == pytest.approx(20, abs=2)
    assert beats(0.1, 60) == pytest.approx(20, abs=2)


def test_one_that_gets_no_answer_beats_each_heartbeat_although_it_talks() -> None:
    assert beats(0.5, 60, is_answered=False) == pytest.approx(58, abs=2)
