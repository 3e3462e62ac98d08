"""What becomes of a trial whose attempt failed."""

from __future__ import annotations

import pytest
from hand import Hand
from watched_search import OPTIMIZERS, Search
from witness import Witness, said

from maggy_like.driver.state_machine.interface import (
    TrialSaid,
    WorkerLost,
)
from maggy_like.errors import TrialsFailedError
from maggy_like.protocol.messages import (
    Assign,
    Checkpointed,
    Decided,
    Reported,
)
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded, Event, Measured, from_json
from optimizers.core.trial import Failure, FailureKind, TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT


def test_a_trial_that_keeps_dying_fails_with_its_cause() -> None:
    hand = Hand(n_trials=1, max_attempts=2).start()
    worker = hand.join(0)
    died = {"outcome": "died", "kind": "signal", "message": "killed by SIGSEGV"}
    (again,) = hand.finish(worker, **died)
    assert isinstance(again, Assign)
    assert again.attempt == 2
    hand.report(worker, 1, 0.5)
    hand.finish(worker, **died)
    failure = hand.study.trials[0].failure
    assert failure is not None
    assert failure.message == "killed by SIGSEGV (attempt 2 of 2)"
    assert hand.machine.ending == "completed"


RAISED = {"outcome": "raised", "kind": "exception", "message": "ValueError: x", "traceback": "Tr"}
ALIKE = "(attempt 2, just as the one before)"


def test_an_exception_costs_two_attempts_and_the_search_goes_on() -> None:
    hand = Hand(n_trials=2).start()
    worker = hand.join(0)
    (again,) = hand.finish(worker, **RAISED)
    assert isinstance(again, Assign)
    assert (again.trial, again.attempt) == (0, 2)
    assert hand.shown == ["attempt 1 lost: ValueError: x; the trial will be retried"]
    (following,) = hand.finish(worker, **RAISED)
    assert isinstance(following, Assign)
    assert hand.states() == ["failed", "running"]
    assert f"failed: ValueError: x {ALIKE}\nTr" in hand.shown
    ended = [event for event in hand.events if isinstance(event, AttemptEnded)]
    assert [event.failure.message for event in ended if event.failure] == ["ValueError: x", f"ValueError: x {ALIKE}"]


@pytest.mark.parametrize("further", ["place", "type", "step", "checkpoint", "worker"])
def test_an_attempt_that_failed_in_another_way_or_later_is_followed_by_another(further: str) -> None:
    hand = Hand(n_trials=1, max_attempts=3).start()
    worker = hand.join(0)
    hand.report(worker, 3, 0.5)
    hand.finish(worker, **RAISED)
    hand.report(worker, 3, 0.5)
    match further:
        case "place":
            hand.finish(worker, **{**RAISED, "place": "train.py:train:4"})
        case "type":
            hand.finish(worker, **{**RAISED, "types": ("builtins.KeyError",)})
        case "step":
            hand.report(worker, 4, 0.5)
            hand.finish(worker, **RAISED)
        case "checkpoint":
            hand.tell(TrialSaid(worker, Checkpointed(0, 2, 3, "00000/2-1.pkl")))
            hand.finish(worker, **RAISED)
        case "worker":
            hand.tell(WorkerLost(worker, "kill -9"))
            worker = hand.join(0, incarnation=1)
    assert (hand.assigned(worker).attempt, hand.states()) == (3, ["running"])
    hand.finish(worker, **RAISED)
    assert hand.study.trials[0].failure is not None
    assert hand.study.trials[0].failure.message == "ValueError: x (attempt 3 of 3)"


def test_a_mistake_in_reporting_is_paid_for_once() -> None:
    hand = Hand(n_trials=1).start()
    worker = hand.join(0)
    hand.finish(worker, outcome="raised", kind=FailureKind.REPORT, message="ReportError: steps rise")
    (trial,) = hand.study.trials
    assert (trial.state, trial.attempt) == (TrialState.FAILED, 1)
    assert trial.failure is not None
    assert trial.failure.message == "ReportError: steps rise"


def test_an_attempt_that_starts_over_says_nothing_twice_and_leaves_nothing_out() -> None:
    hand = Hand(ASHA(sampler="random", mode="stopping"), n_trials=3).start()
    worker = hand.join(0)
    for value in (1.0, 2.0):
        hand.report(worker, 1, value, awaiting=True)
        hand.finish(worker, outcome="stopped")
    assert hand.report(worker, 1, 11.0, awaiting=True) == [Decided(2, 1, stop=False)]
    hand.report(worker, 2, 12.0)
    hand.finish(worker, **RAISED)
    assert hand.report(worker, 1, 0.1, awaiting=True) == [Decided(2, 2, stop=False)]
    assign = hand.assigned(worker)
    columns = {"quality": ([2, 3], [0.2, 13.0]), "accuracy": ([1, 2, 3], [0.7, 0.8, 0.9])}
    hand.tell(TrialSaid(worker, Reported(2, assign.attempt, "quality", columns)))
    trial = hand.study.trials[2]
    measured = [event.columns for event in hand.events if isinstance(event, Measured) and event.trial == 2]
    assert measured == [
        {"quality": ([1], [11.0])},
        {"quality": ([2], [12.0])},
        {"quality": ([3], [13.0]), "accuracy": ([1, 2, 3], [0.7, 0.8, 0.9])},
    ]
    assert (trial.curve.steps.tolist(), trial.curve.values.tolist()) == ([1, 2, 3], [11.0, 12.0, 13.0])


def test_a_resumed_run_knows_how_the_attempt_before_failed_and_how_far_this_one_had_got() -> None:
    hand = Hand(n_trials=1).start()
    worker = hand.join(0)
    hand.report(worker, 3, 0.5)
    hand.finish(worker, **RAISED)
    again = Hand(n_trials=1)
    again.machine.replay(hand.events)
    again.start()
    worker = again.join(0)
    assert again.assigned(worker).attempt == 3  # the second was the lost driver's
    again.finish(worker, **RAISED)
    assert again.assigned(worker).attempt == 4
    again.finish(worker, **RAISED)
    assert again.states() == ["failed"]


def test_the_fall_of_a_gang_is_a_share_of_the_blame_for_each_of_its_trials() -> None:
    hand = Hand(n_trials=2, workers=2, max_attempts=2).start()
    for incarnation in range(4):
        gang = [hand.join(index, incarnation) for index in range(2)]
        assert hand.states() == ["running", "running"]
        hand.tell(*(WorkerLost(worker, "the stage fell", with_others=True) for worker in gang))
    failed = hand.study.trials[0]
    assert (failed.attempt, failed.losses, failed.state) == (4, 0, TrialState.FAILED)
    assert failed.failure == Failure(
        FailureKind.STAGE_LOST, "worker 0 on host was lost: the stage fell (loss of workers 4 of 4)"
    )


@pytest.mark.parametrize(("optimizer", "is_tried_again"), [(RandomSearch(), True), (PBT(population=4), False)])
def test_a_resume_is_advised_only_if_it_tries_failed_trials_again(optimizer: Optimizer, is_tried_again: bool) -> None:
    hand = Hand(optimizer, n_trials=10, max_identical_failures=2, max_attempts=1).start()
    for index in range(2):
        worker = hand.join(index)
        hand.finish(worker, outcome="raised", kind=FailureKind.EXCEPTION, message="wrong", types=["E"], place="f:g:1")
    assert isinstance(hand.machine.error, TrialsFailedError)
    assert ("use resume=True" in str(hand.machine.error)) is is_tried_again
    again = Hand(optimizer, n_trials=10, max_identical_failures=2)
    again.machine.replay(hand.events)
    again.start()
    assert ("failed" in again.states()) is not is_tried_again


# -- A search that goes on after its driver was gone ----------------------------------------------


@pytest.mark.parametrize(("written", "seconds"), [(0.0, 30.0), (45.0, 45.0), (1e9, 1000.0)])
def test_the_time_between_two_drivers_is_no_trials_time(written: float, seconds: float) -> None:
    """A trial ran until the newest time that the journal tells, or until it was written to last."""
    first = Hand().start()
    first.join(0)
    first.now = 30.0
    first.join(1)  # its trial begins now
    again = Hand()
    again.machine.replay(first.events, written)
    again.now = 1000.0
    again.start()
    assert [trial.seconds for trial in again.study.trials[:2]] == [seconds, seconds - 30.0]


# -- A driver may die after any record: what is left of the journal is a state that the run was in


class Chronicle(Witness):
    """Writes down what the study was after each record."""

    def append(self, event: Event) -> None:
        super().append(event)
        self.states[len(self.journal)] = said(self.ledger)

    states: dict[int, str]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_replaying_any_prefix_of_a_journal_gives_the_state_of_that_moment(name: str) -> None:
    run = Chronicle()
    run.states = {}
    run.begin(Search(name, "max", 6, 1, max_attempts=3, trial_timeout=None, workers=2, prompt=True))
    for turn, worker in enumerate(list(run.busy)):
        run.report(worker, 1, 0.1 * turn)
        run.save(worker)
    run.tell(WorkerLost(run.busy[0], "kill -9"))
    run.come(0, ready=True)
    run.settle()

    assert len(run.states) == len(run.journal) > 20
    for size, state in run.states.items():
        study = run.search.study()
        for line in run.journal[:size]:
            study.apply(from_json(line))
        assert said(study) == state
