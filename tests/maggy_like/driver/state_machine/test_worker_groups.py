"""Several workers run one attempt: who they are, where they stop, and how it ends for all."""

from __future__ import annotations

import pytest
from multi_worker import BOUND, MultiWorkerHand, multi_worker

from maggy_like.driver.state_machine.interface import (
    StopRequested,
    Tick,
    TrialSaid,
    WorkerGone,
    WorkerLost,
)
from maggy_like.driver.state_machine.phases import choose
from maggy_like.driver.state_machine.run import Worker
from maggy_like.protocol.endings import Ending, StopReason
from maggy_like.protocol.messages import (
    Abort,
    Decided,
    Halt,
    Kept,
    Look,
    Meet,
    Opened,
    RankInfo,
    Shutdown,
    Silent,
    Stop,
)
from maggy_like.protocol.task import WorkerId
from maggy_like.storage.run_paths import Store
from optimizers.core.events import AttemptStarted
from optimizers.core.trial import FailureKind, TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import Threshold

# -- who they are -----------------------------------------------------------------------------------


def test_a_wide_trial_waits_for_as_many_idle_workers() -> None:
    run = MultiWorkerHand(3, workers=3)
    run.start()
    for index in range(2):
        run.come(index)
        assert not run.study.trials
    run.come(2)
    (started,) = (event for event in run.events if isinstance(event, AttemptStarted))
    assert (started.world_size, started.worker) == (3, 0)
    assert run.study.trials[0].world_size == 3


def test_two_wide_trials_run_beside_each_other_and_an_odd_worker_idles() -> None:
    run = MultiWorkerHand(2, workers=5, n_trials=9)
    run.start()
    for index in range(5):
        run.come(index)
    assert [trial.state for trial in run.study.trials] == [TrialState.RUNNING] * 2
    assert run.machine.workers[4].trial is None


def test_ranks_of_a_host_are_side_by_side_and_know_their_ranks() -> None:
    run = MultiWorkerHand(5)
    run.start()
    for index, host in enumerate(["a", "b", "a", "b", "a"]):
        run.come(index, host, gpus=(f"{index}", f"{index}x") if host == "b" else (f"{index}",))
    assert [worker.index for worker in run.members()] == [0, 2, 4, 1, 3]
    on_a, on_b = ("0", "2", "4"), ("1", "3", "1x", "3x")
    assert [run.assigned(worker).rank_info for worker in run.members()] == [
        RankInfo(0, 5, 0, 3, 0, 2, on_a),
        RankInfo(1, 5, 1, 3, 0, 2, on_a),
        RankInfo(2, 5, 2, 3, 0, 2, on_a),
        RankInfo(3, 5, 0, 2, 1, 2, on_b),
        RankInfo(4, 5, 1, 2, 1, 2, on_b),
    ]


def test_workers_that_share_a_gpu_name_it_once() -> None:
    run = MultiWorkerHand(2)
    run.start()
    for index in range(2):
        run.come(index, gpus=("0",))
    assert [order.rank_info.devices for order in map(run.assigned, run.members()) if order.rank_info] == [("0",)] * 2


@pytest.mark.parametrize(
    ("hosts", "width", "chosen"),
    [
        ("abb", 2, [1, 2]),
        ("abcc", 2, [2, 3]),
        ("ab", 2, [0, 1]),
        ("ababb", 4, [1, 3, 4, 0]),
        ("abab", 1, [0]),
    ],
)
def test_a_trial_lies_on_as_few_hosts_as_can_be(hosts: str, width: int, chosen: list[int]) -> None:
    idle = [Worker(WorkerId(index, 0), host, (), seen=0.0) for index, host in enumerate(hosts)]
    assert [worker.id.index for worker in choose(idle, width)] == chosen


def test_a_trial_of_one_worker_has_no_rank_info() -> None:
    run, (worker,) = multi_worker(1)
    assert run.assigned(worker).rank_info is None


# -- what they are told of each other --------------------------------------------------------------------


def test_rank_0_opens_the_store_and_the_others_are_told_where() -> None:
    run, (first, second, third) = multi_worker(3)
    told = run.to(TrialSaid(first, Opened(0, 1, "10.0.0.1", 4000)))
    assert told == [(second, Meet(0, 1, "10.0.0.1", 4000)), (third, Meet(0, 1, "10.0.0.1", 4000))]


def test_a_store_of_a_past_attempt_is_told_to_nobody() -> None:
    run, (first, second) = multi_worker()
    run.fail(first, "ValueError: x", at=1.0)
    run.finish(second, outcome="stopped")
    assert run.assigned(first).attempt == 2
    assert run.to(TrialSaid(first, Opened(0, 1, "10.0.0.1", 4000))) == []


@pytest.mark.parametrize("value", [0.1, 0.9])
def test_the_verdict_at_a_milestone_goes_to_all_ranks(value: float) -> None:
    rule = Threshold(
        ASHA(sampler="random", eta=3, min_budget=3, mode="promotion"), step=1, worse_than=0.5, direction="max"
    )
    run, members = multi_worker(3, rule, n_trials=3)
    before = len(run.sent)
    run.report(members[0], 3, value, awaiting=True)
    assert run.sent[before:] == [(worker, Decided(0, 1, value < 0.5)) for worker in members]


def test_a_stop_halts_all_and_lets_them_stop_in_the_first_report_that_none_has_passed() -> None:
    run, members = multi_worker(3, BOUND)
    before = len(run.sent)
    run.report(members[0], 1, 0.1)
    assert run.sent[before:] == [(worker, Halt(0, 1, StopReason.RULE)) for worker in members]
    run.report(members[0], 2, 0.1)
    assert len(run.sent) == before + 3  # once
    assert run.held(members[2], 4) == []
    assert run.held(members[0], 2) == []
    assert run.held(members[1], 3) == [(worker, Stop(0, 1, 5, StopReason.RULE)) for worker in members]
    for worker in members:
        assert run.ends == []
        run.finish(worker, outcome="stopped")
    assert [end.state for end in run.ends] == [TrialState.STOPPED]


def test_a_rank_that_ended_meanwhile_is_not_waited_for() -> None:
    run, (first, second) = multi_worker(2, BOUND)
    run.report(first, 1, 0.1)
    run.held(first, 3)
    assert run.finish(second) == [Stop(0, 1, 4, StopReason.RULE)]
    run.finish(first, outcome="stopped")
    assert run.study.trials[0].state is TrialState.STOPPED


def test_an_attempt_that_all_have_ended_before_they_could_be_stopped_stands_as_it_ended() -> None:
    run, (first, second) = multi_worker(2, BOUND)
    run.report(first, 9, 0.1)
    run.finish(first, 0.1)
    run.finish(second)
    assert run.study.trials[0].state is TrialState.COMPLETED


def test_who_is_halted_at_a_milestone_gets_its_verdict_first() -> None:
    """Rank 0 is halted while its report at the milestone is on its way: nobody can be past it."""
    rule = Threshold(
        ASHA(sampler="random", eta=3, min_budget=3, mode="stopping"), step=1, worse_than=0.5, direction="max"
    )
    run, members = multi_worker(2, rule, n_trials=3)
    run.report(members[0], 1, 0.1)
    before = len(run.sent)
    run.report(members[0], 3, 0.1, awaiting=True)
    assert run.sent[before:] == [(worker, Decided(0, 1, True)) for worker in members]


def test_an_overdue_attempt_is_halted_once_and_ends_as_a_timeout() -> None:
    run, members = multi_worker(2, trial_timeout=5.0, max_attempts=1)
    run.now = 6.0
    assert run.to(Tick()) == [(worker, Halt(0, 1, StopReason.FAULT)) for worker in members]
    assert run.to(Tick()) == []
    for worker in members:
        run.held(worker, 2)
        run.finish(worker, outcome="stopped")
    (end,) = run.ends
    assert end.failure is not None
    assert (end.state, end.failure.kind) == (TrialState.FAILED, "timeout")


# -- faults -----------------------------------------------------------------------------------------------


def test_a_failed_rank_ends_the_attempt_for_all_and_costs_one() -> None:
    run, (first, second, third) = multi_worker(3)
    before = len(run.sent)
    run.fail(second, "ValueError: x", at=2.0)
    assert run.sent[before:] == [(first, Abort(0, 1)), (third, Abort(0, 1))]
    run.finish(first, outcome="stopped")
    assert run.ends == []
    run.finish(third, outcome="stopped")
    (end,) = run.ends
    assert end.failure is not None
    assert (end.state, end.failure.kind) == (TrialState.PENDING, "exception")
    assert (end.failure.message, end.failure.traceback) == ("rank 1: ValueError: x", "of ValueError: x")
    assert [run.assigned(worker).attempt for worker in (first, second, third)] == [2, 2, 2]
    assert run.study.trials[0].losses == 1


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([(0, "collective", 1.0), (2, "exception", 3.0), (1, "signal", 2.0)], "rank 1: signal"),
        ([(2, "exception", 3.0), (1, "exit", 2.0), (0, "exception", 4.0)], "rank 1: exit"),
        ([(0, "collective", 3.0), (1, "collective", 2.0), (2, "collective", 4.0)], "rank 1: collective"),
    ],
)
def test_the_earliest_failure_that_is_a_cause_is_named_with_its_rank(
    ends: list[tuple[int, str, float]], told: str
) -> None:
    run, members = multi_worker(3)
    for rank, kind, at in ends:
        run.fail(members[rank], kind, at=at, kind=kind)
    assert [end.failure.message for end in run.ends if end.failure] == [told]


def test_ranks_that_parted_ways_are_named_with_their_places() -> None:
    run, members = multi_worker(3)
    run.fail(members[1], "aborted, as the ranks did not take the same steps", at=1.0, kind="signal")
    run.fail(members[0], "reset by peer", at=2.0, kind="collective", place="train.py:train:9")
    run.finish(members[2], outcome="stopped")
    (end,) = run.ends
    assert end.failure is not None
    assert end.failure.message.endswith("take the same steps (rank 0 was at train.py:train:9)")


def test_a_lost_worker_ends_the_attempt_for_all_and_its_rank_is_named() -> None:
    run, (first, second) = multi_worker()
    before = len(run.sent)
    run.tell(WorkerLost(second, "kill -9"))
    assert (first, Abort(0, 1)) in run.sent[before:]
    run.fail(first, "RuntimeError: Connection closed by peer", at=1.0, kind=FailureKind.COLLECTIVE)
    (end,) = run.ends
    assert end.failure is not None
    assert end.failure.kind == "worker_lost"
    assert end.failure.message == "rank 1: worker 1 on host was lost: kill -9"
    assert run.states() == ["pending"]  # one worker is too few
    newcomer = run.come(1, incarnation=1)
    assert run.members() == [first, newcomer]


def test_what_failed_before_its_worker_was_lost_is_the_cause() -> None:
    run, (first, second) = multi_worker()
    run.fail(first, "ValueError: x", at=1.0)
    run.tell(WorkerLost(second, "kill -9"))
    assert [end.failure.kind for end in run.ends if end.failure] == ["exception"]


def test_a_worker_that_is_lost_after_its_rank_had_ended_costs_nothing() -> None:
    run, (first, second) = multi_worker()
    run.finish(second)
    run.tell(WorkerLost(second, "kill -9"))
    run.finish(first, 0.5)
    assert run.states() == ["completed"]
    assert run.study.trials[0].losses == 0


def test_all_ranks_may_be_lost_with_their_gang_and_the_attempt_is_lost_once() -> None:
    run, members = multi_worker(3, max_attempts=1)
    run.tell(*(WorkerLost(worker, "the stage fell", with_others=True) for worker in members))
    assert [(end.state, end.failure and end.failure.kind) for end in run.ends] == [
        (TrialState.PENDING, FailureKind.STAGE_LOST)
    ]
    for index in range(3):
        run.come(index, incarnation=1)
    assert run.study.trials[0].attempt == 2


def test_the_next_attempt_goes_on_from_the_checkpoint_on_the_whole_team() -> None:
    run, (first, second) = multi_worker()
    run.report(first, 3, 0.5)
    assert run.save(first, 3) == [(first, Kept(0, 1))]
    run.tell(WorkerLost(first, "kill -9"))
    run.finish(second, outcome="stopped")
    newcomer = run.come(0, incarnation=1)
    orders = [run.assigned(worker) for worker in (newcomer, second)]
    assert [(order.attempt, order.checkpoint) for order in orders] == [(2, "00000/1-3.pkl")] * 2


@pytest.mark.parametrize(("rank", "kind"), [(1, "collective"), (0, "collective")])
def test_an_interrupted_attempt_is_not_blamed_for_ranks_that_heard_of_it_first(rank: int, kind: str) -> None:
    """Workers that leave stop where they are, and the others' collective operations fail of it."""
    run, members = multi_worker(2, max_attempts=1)
    told = run.to(StopRequested(Ending.INTERRUPTED))
    assert told == [(worker, Shutdown()) for worker in members]
    run.finish(members[1 - rank], outcome="stopped")
    run.fail(members[rank], "RuntimeError: Connection closed by peer", at=1.0, kind=kind)
    assert [(end.state, end.failure and end.failure.kind) for end in run.ends] == [
        (TrialState.PENDING, FailureKind.DRIVER_LOST)
    ]
    run.tell(*map(WorkerGone, members))
    assert run.machine.is_over


def test_a_word_of_a_rank_that_has_ended_changes_nothing() -> None:
    run, (first, second) = multi_worker()
    run.finish(second)
    run.finish(second)
    assert run.states() == ["running"]
    run.finish(first, 0.5)
    assert run.states() == ["completed"]


# -- checkpoints ------------------------------------------------------------------------------------------


def test_the_newest_states_and_the_best_stay() -> None:
    run, (worker,) = multi_worker(1, kept=Store(keep_checkpoints=2))
    gone: list[str] = []
    for step, value in enumerate([0.1, 0.9, 0.3, 0.2, 0.4, 0.95, 0.5], start=1):
        run.report(worker, step, value)
        ((_, kept),) = run.save(worker, step)
        assert isinstance(kept, Kept)
        gone += kept.discard
        left = {f"00000/1-{saved}.pkl" for saved in range(1, step + 1)} - set(gone)
        best = 6 if step >= 6 else min(step, 2)
        assert left == {f"00000/1-{saved}.pkl" for saved in (best, step, max(1, step - 1))}
    assert len(gone) == len(set(gone))


def test_a_state_told_of_twice_is_taken_once() -> None:
    run, (worker,) = multi_worker(1)
    run.report(worker, 1, 0.5)
    run.save(worker, 1)
    assert run.save(worker, 1) == []
    assert run.machine.stale == 1


def test_of_a_silent_rank_the_others_are_looked_at_and_the_failure_says_who_was_elsewhere() -> None:
    run = MultiWorkerHand(2, max_attempts=1)
    run.start()
    for index in range(2):
        run.come(index)
    first, second = run.members()
    order = run.assigned(first)
    assert run.to(TrialSaid(first, Silent(order.trial, order.attempt))) == [(second, Look(order.trial, order.attempt))]
    waits = {"stood": "a.py:2 in train (loss.backward())", "is_in_collective": True}
    run.finish(first, outcome="died", kind="timeout", message="it reported nothing", at=1.0, **waits)
    run.finish(second, outcome="stopped", stood="a.py:1 in train (time.sleep(60))")
    (end,) = run.ends
    assert end.failure is not None
    assert end.failure.message.startswith(
        "it reported nothing; rank 1 was at a.py:1 in train (time.sleep(60)), "
        "rank 0 waited in a collective operation at a.py:2 in train (loss.backward())"
    )
