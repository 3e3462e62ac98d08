"""A store that refuses: who waits, what is told of it, and when the run gives up."""

from __future__ import annotations

import pytest
from hand import Hand

from maggy_like.driver.state_machine.failures import STORE_PATIENCE
from maggy_like.driver.state_machine.interface import Tick, TrialSaid
from maggy_like.errors import StoreError
from maggy_like.protocol.messages import Assign, Checkpointed, Shutdown, Stop, Waiting
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import AttemptEnded
from optimizers.core.trial import FailureKind, TrialState

FULL = "the store file:///states cannot be written (No space left on device)"


def wait(hand: Hand, worker: WorkerId, reason: str = FULL) -> None:
    assign = hand.assigned(worker)
    hand.tell(TrialSaid(worker, Waiting(assign.trial, assign.attempt, reason)))


def fail(hand: Hand, worker: WorkerId) -> None:
    hand.finish(worker, outcome="raised", kind=FailureKind.STORE, message=FULL)


def tick_to(hand: Hand, now: float) -> None:
    for worker in hand.machine.workers.values():
        worker.seen = now  # they beat
    hand.now = now
    hand.tell(Tick())


def test_it_is_told_once_when_it_begins_and_once_when_it_is_over() -> None:
    hand = Hand().start()
    one, two = hand.join(0), hand.join(1)
    wait(hand, one)
    wait(hand, one)
    hand.now = 3.0
    wait(hand, two)
    wait(hand, one, "")
    hand.now = 25.0
    wait(hand, two, "")
    assert hand.shown == [
        f"{FULL}; trials wait and try again", "the store serves again after 25 s; 2 trials waited for it",
    ]  # fmt: skip
    hand.finish(one, 1.0)
    hand.finish(two, 2.0)
    assert [(trial.state, trial.attempt) for trial in hand.study.trials[:2]] == [(TrialState.COMPLETED, 1)] * 2


def test_a_trial_that_ends_as_it_waits_says_nothing_of_the_store() -> None:
    hand = Hand().start()
    worker = hand.join(0)
    wait(hand, worker)
    hand.finish(worker, outcome="died", kind=FailureKind.SIGNAL, message="killed")
    wait(hand, worker)  # the next attempt finds it as it was
    assert hand.shown.count(f"{FULL}; trials wait and try again") == 2
    assert not [text for text in hand.shown if "serves again" in text]


def test_the_wait_counts_against_no_time_limit() -> None:
    hand = Hand(trial_timeout=10.0).start()
    worker = hand.join(0)
    tick_to(hand, 8.0)
    wait(hand, worker)
    tick_to(hand, 500.0)
    wait(hand, worker, "")
    tick_to(hand, 501.0)
    assert not [message for _, message in hand.sent if isinstance(message, Stop)]
    tick_to(hand, 503.0)
    assert [message for _, message in hand.sent if isinstance(message, Stop)]


def test_a_call_that_the_store_has_not_answered_counts_against_no_time_limit_and_is_no_outage() -> None:
    hand = Hand(trial_timeout=10.0, store_patience=600.0).start()
    worker = hand.join(0)
    tick_to(hand, 8.0)
    assign = hand.assigned(worker)
    hand.tell(TrialSaid(worker, Waiting(assign.trial, assign.attempt, calls=True)))
    tick_to(hand, 1000.0)
    wait(hand, worker, "")
    tick_to(hand, 1001.0)
    assert not hand.shown
    assert hand.machine.error is None
    assert not [message for _, message in hand.sent if isinstance(message, Stop)]
    tick_to(hand, 1003.0)
    assert [message for _, message in hand.sent if isinstance(message, Stop)]


@pytest.mark.parametrize("late", [Tick(stalled=30.0), Tick(held=30.0), Tick(stalled=30.0, held=30.0)])
def test_a_time_in_which_the_driver_decides_nothing_counts_against_no_trial(late: Tick) -> None:
    hand = Hand(trial_timeout=10.0, heartbeat_timeout=100.0).start()
    hand.join(0)
    hand.now = 35.0
    hand.tell(late)
    assert not [message for _, message in hand.sent if isinstance(message, Stop)]
    hand.now = 41.0
    hand.tell(Tick())
    assert [message for _, message in hand.sent if isinstance(message, Stop)]


def test_a_trial_that_waits_for_too_long_ends_the_run_and_not_itself() -> None:
    hand = Hand(store_patience=600.0).start()
    one, two = hand.join(0), hand.join(1)
    wait(hand, one)
    tick_to(hand, 599.0)
    assert hand.machine.ending is None
    tick_to(hand, 600.0)
    assert isinstance(hand.machine.error, StoreError)
    assert str(hand.machine.error) == (
        f"{FULL}, for 600 s now; free space or fix the access, then use resume=True: the 1 waiting trial continues "
        "from the last checkpoint"
    )
    assert [who for who, message in hand.sent if isinstance(message, Shutdown)] == [one, two]
    for worker in (one, two):
        hand.finish(worker, outcome="stopped")
    assert [(trial.state, trial.losses) for trial in hand.study.trials[:2]] == [(TrialState.PENDING, 0)] * 2

    again = Hand()
    again.machine.replay(hand.events)
    again.start()
    assert again.assigned(again.join(0)).trial == 0


def test_attempts_that_the_store_ended_are_uncounted_and_follow_each_other_ever_more_slowly() -> None:
    hand = Hand(n_trials=1, workers=1, max_attempts=2).start()
    worker = hand.join(0)
    begun = []
    for _ in range(7):
        fail(hand, worker)
        attempts = len([message for _, message in hand.sent if isinstance(message, Assign)])
        since = hand.now
        while len([message for _, message in hand.sent if isinstance(message, Assign)]) == attempts:
            tick_to(hand, hand.now + 0.25)
        begun.append(hand.now - since)
    assert begun == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert hand.study.trials[0].losses == 0
    assert hand.shown == [f"{FULL}; trials wait and try again"]
    assign = hand.assigned(worker)
    name = f"{assign.trial:05d}/{assign.attempt}-1.pkl"
    hand.tell(TrialSaid(worker, Checkpointed(assign.trial, assign.attempt, 1, name)))
    assert hand.shown[1:] == ["the store serves again after 91 s; 1 trial waited for it"]
    fail(hand, worker)
    tick_to(hand, hand.now + 1.0)
    assert hand.assigned(worker).attempt == assign.attempt + 1


def test_attempts_that_the_store_ends_again_and_again_end_the_run() -> None:
    hand = Hand(n_trials=1, workers=1, store_patience=20.0).start()
    worker = hand.join(0)
    while hand.machine.ending is None:
        if hand.study.trials[0].state is TrialState.RUNNING:
            fail(hand, worker)
        tick_to(hand, hand.now + 0.25)
    assert isinstance(hand.machine.error, StoreError)
    assert 20.0 <= hand.now <= 60.0
    assert hand.study.trials[0].state is TrialState.PENDING


def test_other_trials_run_while_one_waits_for_its_next_attempt() -> None:
    hand = Hand(n_trials=2, workers=1).start()
    worker = hand.join(0)
    fail(hand, worker)
    assert hand.assigned(worker).trial == 1
    hand.finish(worker, 1.0)
    tick_to(hand, 1.0)
    assert hand.assigned(worker).trial == 0
    hand.finish(worker, 1.0)
    assert hand.machine.ending == "completed"


@pytest.mark.parametrize("kind", ["store", "exception"])
def test_the_store_s_fault_is_told_from_the_trial_s(kind: str) -> None:
    hand = Hand(n_trials=1, workers=1, max_attempts=1).start()
    hand.finish(hand.join(0), outcome="raised", kind=kind, message="OSError: no")
    ended = next(event for event in hand.events if isinstance(event, AttemptEnded))
    assert ended.state is (TrialState.PENDING if kind == "store" else TrialState.FAILED)


def test_the_default_is_ten_minutes() -> None:
    assert STORE_PATIENCE == 600.0
