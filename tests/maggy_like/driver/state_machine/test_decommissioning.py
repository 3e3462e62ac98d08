"""Workers whose machines are taken away: what they ran goes on elsewhere and has lost no attempt."""

from __future__ import annotations

from typing import Any

import pytest
from hand import Hand

from maggy_like.driver.state_machine.attempts import MAX_NODES
from maggy_like.driver.state_machine.interface import (
    Tick,
    TrialSaid,
    WorkerGone,
    WorkerLeaving,
    WorkerLost,
)
from maggy_like.driver.state_machine.workers import LEAVE_PATIENCE, SETTLING
from maggy_like.protocol.messages import Assign, Checkpointed, Halt, Held, Shutdown, Stop
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.task import WorkerId
from optimizers.core.trial import FailureKind, TrialState
from optimizers.schedulers.population import PBT


def save(hand: Hand, worker: WorkerId, step: int) -> list[Any]:
    assign = hand.assigned(worker)
    name = str(StateName(assign.trial, assign.attempt, step))
    return hand.tell(TrialSaid(worker, Checkpointed(assign.trial, assign.attempt, step, name)))


def kinds(sent: list[Any]) -> list[type]:
    return [type(message) for message in sent]


def test_an_attempt_ends_after_its_next_saved_state_and_goes_on_elsewhere_for_nothing() -> None:
    hand = Hand(max_attempts=1).start()
    leaver, other = hand.join(0), hand.join(1)
    hand.finish(other, 0.5)
    assert hand.tell(WorkerLeaving(leaver, "decommissioned")) == []
    hand.report(leaver, 1, 0.1)
    assert Stop in kinds(save(hand, leaver, 1))
    hand.finish(other, 0.4)
    sent = hand.finish(leaver, outcome="stopped")
    assert kinds(sent)[0] is Shutdown  # no further work for it
    trial = hand.study.trials[0]
    assert (trial.state, trial.losses, trial.stage_losses, trial.failure.kind) == (
        TrialState.PENDING,
        0,
        0,
        "node_left",
    )
    hand.tell(WorkerGone(leaver))
    hand.finish(other, 0.3)
    again = hand.assigned(other)
    assert (again.trial, again.attempt, again.checkpoint) == (0, 2, str(StateName(0, 1, 1)))
    assert hand.replaced == []  # its run ends by itself, and the gang launches the place again
    assert "continues from its checkpoint at step 1" in "\n".join(hand.shown)


def test_one_that_saves_nothing_is_ended_in_time_and_one_that_ends_by_itself_has_ended() -> None:
    hand = Hand().start()
    silent, quick = hand.join(0), hand.join(1)
    hand.tell(WorkerLeaving(silent, "decommissioned"), WorkerLeaving(quick, "decommissioned"))
    assert Shutdown in kinds(hand.finish(quick, 0.5))
    hand.now += LEAVE_PATIENCE - 1
    assert Stop not in kinds(hand.tell(Tick(LEAVE_PATIENCE - 1)))
    hand.now += 1
    assert Stop in kinds(hand.tell(Tick(1.0)))
    assert Stop not in kinds(hand.tell(Tick()))  # told once
    hand.finish(silent, outcome="died", kind=FailureKind.SIGNAL)
    assert [trial.losses for trial in hand.study.trials] == [0, 0]
    assert hand.states() == ["pending", "completed"]


def test_an_idle_worker_that_leaves_is_told_so_and_of() -> None:
    hand = Hand(n_trials=1).start()
    hand.join(0)
    idle = hand.join(1)
    assert kinds(hand.tell(WorkerLeaving(idle, "decommissioned"))) == [Shutdown]
    assert hand.tell(WorkerLeaving(idle, "decommissioned")) == []
    hand.tell(WorkerGone(idle), WorkerLost(idle, "it left before the search was over"))
    assert [line for line in hand.shown if "worker 1" in line] == ["worker 1 on host leaves: decommissioned"]
    assert hand.join(1, incarnation=1)


@pytest.mark.parametrize("gone", ["silent", "told"])
def test_a_machine_that_is_gone_before_its_worker_could_leave_costs_nothing(gone: str) -> None:
    hand = Hand(max_attempts=1).start()
    leaver = hand.join(0)
    hand.tell(WorkerLeaving(leaver, "decommissioned"))
    if gone == "told":
        hand.tell(WorkerLost(leaver, "worker lost", with_node=True))
    else:
        hand.now += 100
        hand.tell(Tick())
    trial = hand.study.trials[0]
    assert (trial.state, trial.losses) == (TrialState.PENDING, 0)
    assert hand.replaced == [leaver]


def test_all_ranks_of_a_trial_end_in_the_same_report_when_one_is_to_leave() -> None:
    hand = Hand(workers_per_trial=2).start()
    first, second = hand.join(0), hand.join(1)
    hand.tell(WorkerLeaving(second, "decommissioned"))
    assert kinds(save(hand, first, 1)).count(Halt) == 2
    sent = hand.tell(TrialSaid(first, Held(0, 1, 1)), TrialSaid(second, Held(0, 1, 1)))
    assert [message.at for message in sent if isinstance(message, Stop)] == [2, 2]
    hand.finish(first, outcome="stopped")
    assert kinds(hand.finish(second, outcome="stopped")) == [Shutdown]
    assert hand.study.trials[0].losses == 0
    hand.join(1, incarnation=1)
    assert [hand.assigned(worker).attempt for worker in (first, WorkerId(1, 1))] == [2, 2]


def test_lost_machines_cost_nothing_until_a_trial_has_brought_down_one_after_the_other() -> None:
    hand = Hand(n_trials=1, max_attempts=1, workers=1).start()
    for incarnation in range(MAX_NODES):
        assert hand.states() == ["pending"] or not incarnation
        worker = hand.join(0, incarnation)
        assert isinstance(hand.sent[-1][1], Assign)
        hand.tell(WorkerLost(worker, "worker lost", with_node=True))
    assert hand.states() == ["failed"]
    assert sum("worker lost" in line for line in hand.shown) == MAX_NODES  # one line each
    assert f"loss of workers {MAX_NODES} of {MAX_NODES}" in hand.study.trials[0].failure.message


def test_a_machine_that_a_trial_may_have_brought_down_costs_an_attempt_though_it_was_to_leave() -> None:
    hand = Hand(max_attempts=1).start()
    leaver = hand.join(0)
    hand.tell(WorkerLeaving(leaver, "decommissioned"), WorkerLost(leaver, "exited caused by one of the tasks"))
    assert hand.states()[0] == "failed"


def test_a_trial_that_is_due_to_go_on_waits_for_the_worker_that_follows() -> None:
    """Every worker leaves with its attempt: the search is as long as with one that stays, and a resume as well."""

    def search() -> Hand:
        return Hand(PBT(population=2, interval=3, quantile=0.5), n_trials=3)

    def run(hand: Hand, *, leaving: bool, attempts: int = 99) -> Hand:
        worker = hand.join(0)
        for incarnation in range(1, attempts + 1):
            trial = hand.assigned(worker).trial
            if leaving:
                hand.tell(WorkerLeaving(worker, "decommissioned"))
            hand.finish(worker, (0.9, 0.1, 0.5)[trial])
            if hand.machine.ending is not None:
                break
            if leaving:
                hand.tell(WorkerGone(worker))
                worker = hand.join(0, incarnation)
        return hand

    staying = run(search().start(), leaving=False)
    leaving = run(search().start(), leaving=True)
    assert staying.states() == leaving.states()
    assert staying.study.trials[0].step == leaving.study.trials[0].step == 9
    for attempts in range(1, 9):
        begun = run(search().start(), leaving=False, attempts=attempts)
        again = search()
        again.machine.replay(begun.events)
        again.start()
        assert (again.machine.ending is None) == (begun.machine.ending is None)
        if again.machine.ending is None:
            assert run(again, leaving=False).states() == staying.states()


# -- A gang that grows: proposals and the failures that end a search follow the workers that there are


def grown(workers: int, **options: object) -> Hand:
    return Hand(workers=50, grows=True, max_identical_failures=None, **{"n_trials": 100, **options}).start()  # type: ignore[arg-type]


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
