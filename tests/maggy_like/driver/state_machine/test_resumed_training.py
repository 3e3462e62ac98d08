"""A training that goes on after its driver was gone, or after it lost workers."""

from __future__ import annotations

import pytest
from hand import Hand
from trained import Trained, trained

from maggy_like.driver.state_machine import phases
from maggy_like.driver.state_machine.inputs import (
    TrialSaid,
    WorkerJoined,
    WorkerLost,
)
from maggy_like.driver.state_machine.run import TrainingPlan
from maggy_like.protocol.messages import Checkpointed
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated, from_json, to_json
from optimizers.core.trial import FailureKind, TrialState

# -- a journal that is taken up -------------------------------------------------------------------------


def whole_run(plan: TrainingPlan | None = None) -> Trained:
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


# -- when workers are missing ----------------------------------------------------------------------------


ELASTIC = TrainingPlan(steps=5, workers=3, least=2)


def shrunk(plan: TrainingPlan = ELASTIC) -> Trained:
    """A training of three that has lost one."""
    run = Trained(plan, n_trials=1, workers=3)
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
    run = Trained(TrainingPlan(5, 2, 1, config={"x": 0.5}), n_trials=0)
    run.start()
    (first,) = run.come(0)
    run.pass_time(2 * phases.PATIENCE - 1)
    assert run.states() == ["pending"]
    run.pass_time(1)
    assert run.members == [first]


def test_fewer_than_the_least_never_begin() -> None:
    run = shrunk(TrainingPlan(5, 3, 3))
    run.pass_time(1000 * phases.PATIENCE)
    assert run.states()[-1] == "pending"
    assert run.machine.ending is None


def test_each_loss_is_waited_for_anew() -> None:
    run = shrunk(TrainingPlan(5, 3, 1))
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
