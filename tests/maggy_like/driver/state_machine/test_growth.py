"""A gang that grows: proposals and the failures that end a search follow the workers that there are."""

from __future__ import annotations

from hand import Hand

from maggy_like.driver.failure_policy import FailurePolicy
from maggy_like.driver.state_machine.inputs import Tick
from maggy_like.driver.state_machine.workers import SETTLING
from optimizers.core.trial import FailureKind


def grown(workers: int, **options: object) -> Hand:
    return Hand(workers=50, max_identical_failures=FailurePolicy().enough, **{"n_trials": 100, **options}).start()  # type: ignore[arg-type]


def test_proposals_are_kept_ready_for_the_workers_that_there_are() -> None:
    hand = grown(50)
    assert (Hand(workers=50, n_trials=100).start().ready, hand.ready) == (50, 2)
    for index in range(4):
        hand.join(index)
    assert hand.ready == 4


def test_as_many_trials_that_fail_alike_as_workers_there_are_end_the_search() -> None:
    hand = grown(50)
    workers = [hand.join(index) for index in range(4)]
    for worker in workers:
        assert hand.machine.ending is None
        for _ in range(2):  # the second attempt fails just as the first, and is the last
            if hand.machine.ending is None:
                hand.finish(
                    worker, outcome="raised", kind=FailureKind.EXCEPTION, message="wrong", types=["E"], place="f:g:1"
                )
    assert hand.machine.ending == "error"


def test_late_workers_are_told_of_in_one_line() -> None:
    hand = grown(50)
    hand.join(0)
    for index in range(1, 10):
        hand.join(index)
    hand.now += SETTLING
    hand.tell(Tick(SETTLING))
    hand.join(10)
    hand.now += SETTLING
    hand.tell(Tick(SETTLING))
    assert hand.shown == ["9 workers joined: 10 workers now", "worker 10 on host joined: 11 workers now"]


def test_a_worker_that_falls_silent_where_machines_come_and_go_costs_no_attempt() -> None:
    hand = grown(50, max_attempts=1)
    hand.join(0)
    hand.now += 100
    hand.tell(Tick())
    assert (hand.states(), hand.study.trials[0].losses) == (["pending"], 0)
