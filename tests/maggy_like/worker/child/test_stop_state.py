"""The stop of an attempt: wherever the ranks are when they are halted, all stop in the same report."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.worker.child.stop_state import StopState


def multi_worker() -> StopState:
    return StopState(is_multi_worker=True)


def test_reports_pass_while_nothing_was_said() -> None:
    state = multi_worker()
    assert [state.passes() for _ in range(3)] == [True] * 3
    assert state.halt() == 3


def test_a_stop_lets_those_behind_catch_up_and_no_further() -> None:
    state = multi_worker()
    state.passes()
    state.halt()
    state.stop_at(4)
    assert [state.passes() for _ in range(4)] == [True, True, False, False]


def test_a_halted_report_waits_until_it_is_known_where_to_stop() -> None:
    state, passed = multi_worker(), SimpleQueue[bool]()
    assert state.halt() == 0
    trial = threading.Thread(target=lambda: passed.put(state.passes()))
    trial.start()
    assert passed.empty()  # it cannot pass before the next line, however the threads run
    state.stop_at(2)
    trial.join()
    assert passed.get() is True


@settings(max_examples=examples(150))
@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.permutations(range(4)))
def test_all_ranks_stop_in_the_same_report(passed: list[int], order: list[int]) -> None:
    """Whoever was how far when halted, and whoever hears first where to stop."""
    states = [multi_worker() for _ in passed]
    for state, reports in zip(states, passed, strict=True):
        assert all(state.passes() for _ in range(reports))
    stop = max(state.halt() for state in states) + 1
    made = {}
    for rank in (rank for rank in order if rank < len(states)):
        states[rank].stop_at(stop)
        made[rank] = passed[rank] + next(n for n in range(100) if not states[rank].passes()) + 1
    assert set(made.values()) == {max(passed) + 1}


@settings(max_examples=examples(40))
@given(ranks=st.integers(2, 4), when=st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_threads_that_meet_in_each_step_stop_in_the_same_report(ranks: int, when: list[int]) -> None:
    """Ranks as threads that wait for each other in each step; each is halted when one of them has come to a report."""
    states = [multi_worker() for _ in range(ranks)]
    meeting = threading.Barrier(ranks)
    held: SimpleQueue[tuple[int, int]] = SimpleQueue()
    stopped: dict[int, int] = {}

    def train(rank: int) -> None:
        for report in range(1, 100):
            meeting.wait(300)
            if report == when[rank] + 1:  # this one is halted from without, all others by the thread below
                held.put((rank, states[rank].halt()))
            if not states[rank].passes():
                stopped[rank] = report
                return

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    first, reports = held.get()
    known = {first: reports} | {rank: states[rank].halt() for rank in range(ranks) if rank != first}
    for state in states:
        state.stop_at(max(known.values()) + 1)
    for thread in threads:
        thread.join(300)
    assert set(stopped) == set(range(ranks))
    assert set(stopped.values()) == {max(known.values()) + 1}


def test_a_requested_stop_ends_every_wait() -> None:
    state, passed = multi_worker(), SimpleQueue[bool]()
    state.halt()
    trial = threading.Thread(target=lambda: passed.put(state.passes()))
    trial.start()
    state.request()
    trial.join()
    assert passed.get() is False
    assert state.wait_for_verdict() is True


def test_a_requested_stop_is_not_taken_back() -> None:
    state = multi_worker()
    state.request()
    state.stop_at(9)
    state.halt()
    assert state.is_requested
    assert not state.passes()
