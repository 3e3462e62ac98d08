"""Optimizers that wait, and trials that go on from the states of others."""

from __future__ import annotations

import pytest
from hand import Hand

from maggy_like.driver.state_machine.inputs import TrialSaid, WorkerLost
from maggy_like.errors import OptimizerError
from maggy_like.protocol.messages import (
    Assign,
    Checkpointed,
    Shutdown,
)
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import WAIT, Answer, History, Optimizer, Proposal
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.population import PBT


class Waiting(Optimizer):
    """Proposes the first two; waits for both to end, then lets one child go on from each."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, index: int, history: History) -> Answer:
        self.asked.append(index)
        if index < 2:
            return {"x": index / 2}
        if len(history.observations) < 2:
            return WAIT
        return Proposal({"x": 0.9}, parent=index - 2) if index < 4 else None


def test_an_optimizer_that_waits_is_asked_again_for_the_same_index_when_something_changed() -> None:
    hand = Hand(Waiting(), n_trials=9).start()
    first, second = hand.join(0), hand.join(1)
    optimizer = hand.study.optimizer
    assert isinstance(optimizer, Waiting)
    assert set(optimizer.asked) == {0, 1, 2}
    before = len(optimizer.asked)
    hand.report(first, 1, 0.5)  # no update: a report between milestones is not observed
    assert len(optimizer.asked) == before
    assert hand.finish(first, 0.5) == []
    assert optimizer.asked[before:] == [2]
    child, other = hand.finish(second, 0.6)
    assert isinstance(child, Assign)
    assert isinstance(other, Assign)
    assert optimizer.asked[-3:] == [2, 3, 4]
    assert [trial.parent for trial in hand.study.trials] == [None, None, 0, 1]


def test_a_search_whose_optimizer_waits_for_nothing_ends() -> None:
    class Stuck(RandomSearch):
        adaptive = True

        def ask(self, index: int, history: History) -> Answer:  # type: ignore[override]
            return super().ask(index, history) if index == 0 else WAIT

    hand = Hand(Stuck(), n_trials=9).start()
    worker = hand.join(0)
    assert hand.machine.ending is None
    assert hand.finish(worker, 0.5) == [Shutdown()]
    assert hand.machine.ending == "completed"


def test_a_child_starts_from_its_parent_s_state_and_steps() -> None:
    hand = Hand(Waiting(), n_trials=9).start()
    first, second = hand.join(0), hand.join(1)
    hand.report(first, 9, 0.5)
    hand.tell(TrialSaid(first, Checkpointed(0, 1, 9, "00000/1-1.pkl")))
    hand.finish(first, 0.5)
    child, _ = hand.finish(second, 0.6)
    assert isinstance(child, Assign)
    assert (child.attempt, child.checkpoint) == (1, "00000/1-1.pkl")
    assert (hand.study.trials[2].start, hand.study.trials[2].step) == (9, 9)
    again = Hand(Waiting(), n_trials=9)
    again.machine.replay(hand.events)
    assert again.study.trials == hand.study.trials


def test_a_parent_that_is_no_trial_is_refused() -> None:
    class Orphan(RandomSearch):
        def ask(self, index: int, history: History) -> Answer:  # type: ignore[override]
            return Proposal(super().ask(index, history), parent=5)

    with pytest.raises(OptimizerError, match="parent must be the number of one of 0 trials, got 5 from Orphan"):
        Hand(Orphan()).start()


def save(hand: Hand, worker: WorkerId, *states: str) -> None:
    assign = hand.assigned(worker)
    for state in states:
        hand.tell(TrialSaid(worker, Checkpointed(assign.trial, assign.attempt, 1, state)))


def state(trial: int, attempt: int, number: int) -> str:
    return str(StateName(trial, attempt, number))


def test_states_are_discarded_with_the_attempt_after_the_next() -> None:
    """The newest one is what the next attempt begins with, and stays as long as that runs."""
    hand = Hand(PBT(population=2, interval=3, quantile=0.5), n_trials=3).start()
    first, second = hand.join(0), hand.join(1)
    save(hand, first, *(state(0, 1, count) for count in (1, 2, 3)))  # the worker keeps two of them
    hand.report(first, 3, 0.9)
    hand.finish(first)
    assert (hand.assigned(first).checkpoint, hand.assigned(first).discard) == (state(0, 1, 3), (state(0, 1, 2),))
    save(hand, first, state(0, 2, 1))
    hand.finish(second, 0.1)  # given up, for a child of the first
    assert hand.assigned(second).checkpoint == state(0, 1, 3)
    hand.report(first, 6, 0.9)
    hand.finish(first)
    assert (hand.assigned(first).checkpoint, hand.assigned(first).discard) == (state(0, 2, 1), ())  # its child may read
    save(hand, second, state(2, 1, 1))
    save(hand, first, state(0, 3, 1))
    hand.tell(WorkerLost(first, "kill -9"))
    again = hand.join(0, incarnation=1)
    assert (hand.assigned(again).checkpoint, hand.assigned(again).discard) == (state(0, 3, 1), (state(0, 1, 3),))
