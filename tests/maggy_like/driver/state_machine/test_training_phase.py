"""The training that follows a search, or stands alone: when it begins, on whom, and how a resumed run takes it up."""

from __future__ import annotations

from typing import Any

import pytest
from hand import Hand
from trained import GANG, Trained, trained

from maggy_like.driver.settings import TrainingSettings
from maggy_like.driver.state_machine import phases
from maggy_like.driver.state_machine.interface import (
    StopRequested,
    TrialSaid,
    WorkerJoined,
    WorkerLost,
)
from maggy_like.protocol.endings import Ending, StopReason
from maggy_like.protocol.messages import Checkpointed, Shutdown, Stop
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated, from_json, to_json
from optimizers.core.trial import FailureKind, TrialState

# -- after a search -----------------------------------------------------------------------------------


def test_the_best_configuration_is_trained_on_the_whole_gang_once_the_search_is_over() -> None:
    run = trained()
    (created,) = run.trainings
    assert created == TrialCreated(2, run.study.trials[1].config, training=5)
    assert [run.assigned(worker).budget for worker in run.members] == [5, 5]
    assert not [m for _, m in run.sent if isinstance(m, Shutdown)]
    assert run.machine.is_training
    run.finish(run.members[0], 0.8)
    run.finish(run.members[1])
    assert run.machine.ending == "completed"
    assert [m for _, m in run.sent[-GANG:]] == [Shutdown()] * GANG
    run.leave()
    assert run.machine.is_over
    assert run.states() == ["completed"] * 3


def test_the_training_is_no_part_of_the_search() -> None:
    run = trained()
    run.finish(run.members[0], 0.9)
    run.finish(run.members[1])
    best = run.study.best
    assert best is not None
    assert (best.id, best.value) == (1, 0.7)
    assert run.study.size == 2
    assert sum(run.study.counts.values()) == 2
    assert len(run.study.history.observations) <= 2


def test_trials_that_run_when_the_time_is_up_are_stopped_and_not_run_again() -> None:
    run = Trained(n_trials=5)
    run.start()
    first, second = run.come(0, 1)
    run.report(first, 3, 0.6)
    told = run.tell(StopRequested(Ending.TIMEOUT))
    assert told == [Stop(trial, 1, reason=StopReason.RUN_ENDED) for trial in (0, 1)]
    run.finish(first, outcome="stopped")
    assert run.trainings == []
    run.finish(second, outcome="stopped")
    assert [event.config for event in run.trainings] == [run.study.trials[0].config]
    assert run.members == [first, second]
    assert run.states() == ["pending", "pending", "running"]
    assert run.study.trials[0].losses == 0
    run.finish(first, 0.9)
    run.finish(second)
    assert run.machine.ending == "timeout"
    assert run.study.trials[0].attempt == run.study.trials[1].attempt == 1


def test_the_best_is_chosen_when_the_last_trial_has_ended_and_not_when_the_time_is_up() -> None:
    run = Trained(n_trials=5)
    run.start()
    first, second = run.come(0, 1)
    run.report(first, 3, 0.6)
    run.tell(StopRequested(Ending.TIMEOUT))
    run.finish(first, outcome="stopped")
    run.finish(second, 0.9)  # it was through before it heard of the end
    assert [event.config for event in run.trainings] == [run.study.trials[1].config]


def test_nothing_is_trained_where_no_trial_has_a_value_after_all() -> None:
    run = Trained(n_trials=5, max_attempts=1, study={"value": "last"})
    run.start()
    first, second = run.come(0, 1)
    run.report(first, 3, 0.6)
    run.tell(StopRequested(Ending.TIMEOUT))
    run.finish(second, outcome="stopped")
    run.finish(first, outcome="raised", kind=FailureKind.EXCEPTION, message="ValueError: x")
    assert run.trainings == []
    assert run.machine.ending == "timeout"


def test_a_timeout_during_the_training_does_not_end_it() -> None:
    run = trained()
    assert run.tell(StopRequested(Ending.TIMEOUT)) == []
    assert run.machine.is_training


def test_a_wide_search_hands_over_too() -> None:
    run = Trained(n_trials=1, workers=3, workers_per_trial=2)
    run.start()
    run.come(0, 1, 2)
    for worker in (WorkerId(0, 0), WorkerId(1, 0)):
        run.finish(worker, 0.5)
    assert len(run.members) == 3
    assert run.study.trials[1].world_size == 3


@pytest.mark.parametrize("reason", ["completed", "timeout"])
def test_nothing_is_trained_where_no_trial_has_a_value(reason: str) -> None:
    run = Trained(max_attempts=1)
    run.start()
    for worker in run.come(0, 1):
        if reason == "completed":
            run.finish(worker, outcome="raised", kind=FailureKind.EXCEPTION, message="ValueError: x")
    if reason == "timeout":
        run.tell(StopRequested(Ending.TIMEOUT))
    assert run.trainings == []
    assert run.machine.ending == reason


@pytest.mark.parametrize("reason", [Ending.INTERRUPTED, Ending.STOPPED])
def test_nothing_is_trained_where_the_user_stops_the_search(reason: Ending) -> None:
    run = Trained()
    run.start()
    run.report(run.come(0, 1)[0], 1, 0.5)
    run.tell(StopRequested(reason))
    assert run.trainings == []
    assert run.machine.ending == reason


def test_an_interrupted_training_may_go_on_later() -> None:
    run = trained()
    run.tell(StopRequested(Ending.INTERRUPTED))
    for worker in run.members:
        run.finish(worker, outcome="stopped")
    run.leave()
    assert run.machine.is_over
    assert run.machine.ending == "interrupted"
    assert (run.study.trials[2].state, run.study.trials[2].losses) == (TrialState.PENDING, 0)


def test_a_training_that_fails_for_good_ends_the_run() -> None:
    run = trained(max_attempts=2)
    for message in ("ValueError: x", "ValueError: y"):
        first, second = run.members
        run.finish(second, outcome="raised", kind=FailureKind.EXCEPTION, message=message, at=1.0)
        run.finish(first, outcome="stopped")
    failure = run.study.trials[2].failure
    assert failure is not None
    assert failure.message == "rank 1: ValueError: y (attempt 2 of 2)"
    assert run.machine.ending == "completed"
    assert run.study.best is run.study.trials[1]


def test_a_fault_of_all_ranks_is_the_same_whichever_rank_has_it_first() -> None:
    run = trained()
    for rank in (1, 0):
        first, other = run.members[rank], run.members[1 - rank]
        run.finish(first, outcome="raised", kind=FailureKind.EXCEPTION, message="ValueError: x", at=1.0)
        run.finish(other, outcome="stopped")
    failure = run.study.trials[2].failure
    assert failure is not None
    assert failure.message == "rank 0: ValueError: x (attempt 2, just as the one before)"


def test_a_training_may_report_nothing_and_return_nothing() -> None:
    run = trained()
    for worker in run.members:
        run.finish(worker)
    assert run.study.trials[2].state is TrialState.COMPLETED


# -- alone ---------------------------------------------------------------------------------------------


def test_a_training_may_stand_alone() -> None:
    run = Trained(TrainingSettings(1, config={"x": 0.25}), n_trials=0)
    run.start()
    assert [event.config for event in run.trainings] == [{"x": 0.25}]
    assert run.study.trials[0].state is TrialState.PENDING
    for worker in run.come(0, 1):
        assert (run.assigned(worker).config, run.assigned(worker).is_search) == ({"x": 0.25}, False)
        run.finish(worker, outcome="returned", returned=None if worker.index else [1, "two"])
    assert run.kept == [[1, "two"]]
    assert run.machine.ending == "completed"


# -- A training that goes on after its driver was gone, or after it lost workers ------------------


# -- a journal that is taken up -------------------------------------------------------------------------


def whole_run(plan: TrainingSettings | None = None) -> Trained:
    """A search, a training that loses an attempt, and the end."""
    run = trained(plan)
    first, second = run.members
    run.report(first, 2, 0.5)
    run.tell(TrialSaid(first, Checkpointed(2, 1, 2, "00002/1-1.pkl")))
    run.tell(WorkerLost(second, "kill -9"))
    run.finish(first, outcome="stopped")
    (newcomer,) = run.come(1, incarnation=1)
    run.report(first, 3, 0.6)
    run.finish(first, 0.8)
    run.finish(newcomer)
    assert run.machine.ending == "completed"
    return run


EVENTS: list[Event] = whole_run().events


@pytest.mark.parametrize("kept", range(len(EVENTS) + 1))
def test_a_run_goes_on_wherever_its_journal_ends(kept: int) -> None:
    before = EVENTS[:kept]
    run = Trained()
    run.machine.replay(from_json(to_json(event)) for event in before)
    run.start()
    run.come(0, 1)
    for _ in range(20):
        busy = [worker for worker in run.machine.workers.values() if worker.trial is not None]
        if not busy:
            break
        attempt = busy[0].attempt
        assert attempt is not None
        for worker in attempt.members:
            trial = run.study.trials[attempt.trial]
            saved = trial.checkpoint and trial.checkpoint.name
            assert run.assigned(worker.id).checkpoint == saved
            run.finish(worker.id, 0.7 if trial.id == 1 else 0.3)
    assert run.machine.ending == "completed"
    assert run.states() == ["completed"] * 3
    events = [*before, *run.events]
    assert [event.trial for event in events if isinstance(event, TrialCreated)] == [0, 1, 2]
    assert [trial.training for trial in run.study.trials] == [0, 0, 5]
    assert run.study.trials[2].config == run.study.trials[1].config
    finals = [
        event.trial for event in events if isinstance(event, AttemptEnded) and event.state is TrialState.COMPLETED
    ]
    assert sorted(finals) == [0, 1, 2]
    assert run.events or kept == len(EVENTS)  # what was over has nothing to add


def test_a_training_taken_up_goes_on_from_its_checkpoint() -> None:
    started = [n for n, event in enumerate(EVENTS) if isinstance(event, AttemptStarted) and event.training]
    run = Trained()
    run.machine.replay(EVENTS[: started[-1] + 1])
    run.start()
    for worker in run.come(0, 1):
        assert (run.assigned(worker).attempt, run.assigned(worker).checkpoint) == (3, "00002/1-1.pkl")


def test_a_search_that_is_resumed_without_a_plan_leaves_the_training_alone() -> None:
    created = next(n for n, event in enumerate(EVENTS) if isinstance(event, TrialCreated) and event.training)
    run = Hand(n_trials=2)
    run.machine.replay(EVENTS[: created + 1])
    run.start()
    run.join(0)
    assert run.machine.ending == "completed"
    assert run.states() == ["completed", "completed", "pending"]


def interrupted() -> list[Event]:
    """A search of two trials, and its training, which is interrupted after it has saved a state."""
    run = trained()
    first, second = run.members
    run.report(first, 2, 0.5)
    run.tell(TrialSaid(first, Checkpointed(2, 1, 2, "00002/1-1.pkl")))
    run.report(first, 3, 0.5)
    run.tell(StopRequested(Ending.INTERRUPTED))
    for worker in (first, second):
        run.finish(worker, outcome="stopped")
    return run.events


def resumed(events: list[Event], *values: float, **options: Any) -> Trained:
    run = Trained(**options)
    run.machine.replay(events)
    run.start()
    run.come(*range(GANG))
    run.search(*values)
    return run


def test_an_interrupted_training_continues_at_once_if_the_search_has_nothing_to_add() -> None:
    run = resumed(interrupted())
    assert [(trial.training, trial.attempt) for trial in run.study.trials] == [(0, 1), (0, 1), (5, 2)]
    assert run.assigned(WorkerId(0, 0)).checkpoint == "00002/1-1.pkl"
    assert run.shown == []


def test_more_trials_are_tried_before_an_interrupted_training_continues() -> None:
    run = resumed(interrupted(), 0.2, 0.6, n_trials=4)
    assert [trial.training for trial in run.study.trials] == [0, 0, 5, 0, 0, 5]
    assert [(event.config, event.parent) for event in run.trainings] == [(run.study.trials[1].config, 2)]
    assert run.assigned(WorkerId(0, 0)).checkpoint == "00002/1-1.pkl"
    for index in range(GANG):
        run.finish(WorkerId(index, 0), 0.9)
    assert run.machine.ending == "completed"


def test_another_configuration_that_is_better_by_now_is_trained_from_the_beginning() -> None:
    """Also if it was found by a call that trained nothing, so that only the search of the last one is over."""
    search = Hand(n_trials=4)
    search.machine.replay(before := interrupted())
    search.start()
    worker = search.join(0)
    for value in (0.2, 0.9):
        search.finish(worker, value)
    assert search.machine.ending == "completed"
    run = resumed([*before, *search.events], n_trials=4)
    assert [(event.config, event.parent) for event in run.trainings] == [(run.study.trials[4].config, None)]
    assert run.assigned(WorkerId(0, 0)).checkpoint is None


@pytest.mark.parametrize("n_trials", [2, 8])
def test_a_search_with_a_time_limit_is_not_extended_before_its_interrupted_training(n_trials: int) -> None:
    """Nobody knows whether its time was up before."""
    run = resumed(interrupted(), n_trials=n_trials, timeout=3600.0)
    assert [(trial.training, trial.attempt) for trial in run.study.trials] == [(0, 1), (0, 1), (5, 2)]
    assert run.shown == ["the interrupted training continues, and no other configuration is tried"] * (n_trials == 8)


# -- when workers are missing ----------------------------------------------------------------------------


def shrunk(min_workers: int = 2) -> Trained:
    """A training of three that has lost one."""
    run = Trained(n_trials=1, workers=3, min_workers=min_workers)
    run.start()
    run.come(0, 1, 2)
    run.search(0.5)
    run.tell(WorkerLost(WorkerId(2, 0), "kill -9"))
    for index in (0, 1):
        run.finish(WorkerId(index, 0), outcome="stopped")
    return run


def test_lost_workers_are_waited_for_then_done_without() -> None:
    run = shrunk()
    assert run.states()[-1] == "pending"
    run.pass_time(phases.PATIENCE - 1)
    assert run.states()[-1] == "pending"
    run.pass_time(1)
    assert [worker.index for worker in run.members] == [0, 1]
    assert [info.world_size for worker in run.members if (info := run.assigned(worker).rank_info)] == [2, 2]
    assert run.study.trials[-1].world_size == 2


def test_lost_workers_that_come_back_in_time_take_part() -> None:
    run = shrunk()
    run.pass_time(phases.PATIENCE - 1)
    run.come(2, incarnation=1)
    assert len(run.members) == 3


def test_a_worker_that_is_about_to_be_ready_is_waited_for_twice_as_long() -> None:
    run = shrunk()
    run.tell(WorkerJoined(WorkerId(2, 1), "host"))
    run.pass_time(2 * phases.PATIENCE - 1)
    assert run.states()[-1] == "pending"
    run.pass_time(1)
    assert len(run.members) == 2


def test_workers_that_never_came_are_waited_for_as_long() -> None:
    run = Trained(TrainingSettings(5, config={"x": 0.5}), n_trials=0, min_workers=1)
    run.start()
    (first,) = run.come(0)
    run.pass_time(2 * phases.PATIENCE - 1)
    assert run.states() == ["pending"]
    run.pass_time(1)
    assert run.members == [first]


def test_fewer_than_the_least_never_begin() -> None:
    run = shrunk(min_workers=3)
    run.pass_time(1000 * phases.PATIENCE)
    assert run.states()[-1] == "pending"
    assert run.machine.ending is None


def test_each_loss_is_waited_for_anew() -> None:
    run = shrunk(min_workers=1)
    run.pass_time(phases.PATIENCE)
    assert len(run.members) == 2
    run.tell(WorkerLost(WorkerId(1, 0), "kill -9"))
    run.finish(WorkerId(0, 0), outcome="stopped")
    run.pass_time(phases.PATIENCE - 1)
    assert run.states()[-1] == "pending"
    run.pass_time(1)
    assert len(run.members) == 1
    run.finish(WorkerId(0, 0), 0.9)
    assert run.machine.ending == "completed"


def test_a_training_that_shrank_grows_again_with_its_next_attempt() -> None:
    run = shrunk()
    run.pass_time(phases.PATIENCE)
    run.come(2, incarnation=1)
    assert len(run.members) == 2  # the attempt that runs is left alone
    run.finish(WorkerId(1, 0), outcome="raised", kind=FailureKind.EXCEPTION, message="x", at=1.0)
    run.finish(WorkerId(0, 0), outcome="stopped")
    assert len(run.members) == 3
