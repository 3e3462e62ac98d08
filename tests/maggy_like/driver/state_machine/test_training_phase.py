"""The training that follows a search, or stands alone: when it begins, on whom, and how a resumed run takes it up."""

from __future__ import annotations

import pytest
from trained import GANG, Trained, trained

from maggy_like.driver.state_machine.inputs import (
    StopRequested,
)
from maggy_like.driver.state_machine.run import TrainingPlan
from maggy_like.protocol.endings import Ending, StopReason
from maggy_like.protocol.messages import Shutdown, Stop
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import TrialCreated
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
    run = Trained(TrainingPlan(5, 3, 3), n_trials=1, workers=3, workers_per_trial=2)
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
    run = Trained(TrainingPlan(1, GANG, GANG, config={"x": 0.25}), n_trials=0)
    run.start()
    assert [event.config for event in run.trainings] == [{"x": 0.25}]
    assert run.study.trials[0].state is TrialState.PENDING
    for worker in run.come(0, 1):
        assert (run.assigned(worker).config, run.assigned(worker).is_search) == ({"x": 0.25}, False)
        run.finish(worker, outcome="returned", returned=None if worker.index else [1, "two"])
    assert run.kept == [[1, "two"]]
    assert run.machine.ending == "completed"
