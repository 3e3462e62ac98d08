"""Who ran what when, from a run's events."""

from __future__ import annotations

from hand import Hand

from maggy_like.driver.state_machine.interface import WorkerLost
from maggy_like.results.record import Attempt, Clock, read_attempts
from optimizers.core.trial import TrialState


def test_an_attempt_has_its_worker_its_time_and_its_steps() -> None:
    hand = Hand(n_trials=1, workers=1).start()
    worker = hand.join(0)
    hand.report(worker, 1, 0.5)
    hand.now = 2.0
    hand.tell(WorkerLost(worker, "killed"))
    second = hand.join(0, 1)
    hand.now = 5.0
    hand.finish(second, 0.7)
    first, again = read_attempts(hand.events, Clock([(0.0, 5.0)]))
    assert first.failure is not None
    assert first == Attempt(0, 1, (0,), 0.0, 2.0, TrialState.PENDING, (0, 1), first.failure)
    assert again == Attempt(0, 2, (0,), 2.0, 5.0, TrialState.COMPLETED, (1, 9))


def test_an_attempt_of_several_workers_names_all_of_them() -> None:
    hand = Hand(n_trials=1, workers_per_trial=2).start()
    hand.join(1)
    hand.join(0)
    (attempt,) = read_attempts(hand.events, Clock([(0.0, 1.0)]))
    assert sorted(attempt.workers) == [0, 1]
    assert (attempt.state, attempt.end) == (TrialState.RUNNING, 1.0)


def test_time_without_a_driver_does_not_count() -> None:
    clock = Clock([(100.0, 110.0), (500.0, 520.0)])
    assert [clock(time) for time in (90.0, 100.0, 105.0, 300.0, 500.0, 515.0, 900.0)] == [0, 0, 5, 10, 10, 25, 30]
    assert clock.seams == [10.0]
    assert clock.total == 30.0
