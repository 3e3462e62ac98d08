"""The driver's brain among workers that come, go, die and repeat themselves in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from watched_search import HEARTBEAT, OPTIMIZERS, SLOTS, Search
from witness import Witness, said

from maggy_like.driver.state_machine.interface import StopRequested, Tick, WorkerGone, WorkerLost, WorkerSeen
from maggy_like.driver.state_machine.run import WorkerState
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Assign, OutcomeKind
from maggy_like.protocol.task import WorkerId
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.slow

T = TypeVar("T")

PICK = st.integers(0, 11)
VALUES = st.sampled_from([0.1, 0.2, 0.3, math.nan, math.inf])
OUTCOMES = st.sampled_from(["died", "died", "returned", "raised", "stopped"])


def some(items: Iterable[T], pick: int) -> T:
    choices = list(items)
    return choices[pick % len(choices)]


SEARCHES = st.builds(
    Search,
    name=st.sampled_from(sorted(OPTIMIZERS)),
    direction=st.sampled_from(["max", "min"]),
    n_trials=st.sampled_from([12, 4, 1]),
    points=st.integers(0, 2),
    max_attempts=st.integers(1, 3),
    trial_timeout=st.sampled_from([None, 6.0]),
    workers=st.sampled_from([SLOTS, 1, 0]),
    prompt=st.booleans(),
).filter(lambda search: search.points <= search.n_trials)


class Supervisor(Witness, RuleBasedStateMachine):
    """The workers of a :class:`Witness`, as badly as they may behave."""

    repeated = 0  # how much of the past had been said when something was repeated
    waited = -1  # how long the journal was when time passed

    @initialize(search=SEARCHES)
    def search_first(self, search: Search) -> None:
        self.begin(search)

    @precondition(lambda self: self.machine.ending == "completed")
    @rule(search=SEARCHES)
    def search_again(self, search: Search) -> None:
        self.settle()
        self.begin(search)
        self.repeated, self.waited = 0, -1

    @precondition(lambda self: len(self.live) < (SLOTS if self.machine.ending is None else 1))
    @rule(pick=PICK, ready=st.booleans())
    def a_worker_comes(self, pick: int, ready: bool) -> None:
        self.come(some(set(range(SLOTS)) - {worker.index for worker in self.live}, pick), ready)

    @precondition(lambda self: self.unready)
    @rule(pick=PICK)
    def a_worker_is_ready(self, pick: int) -> None:
        self.become_ready(some(sorted(self.unready, key=repr), pick))

    @precondition(lambda self: self.live)
    @rule(pick=PICK, how=st.sampled_from(["goodbye", "lost", "replaced"]))
    def a_worker_goes(self, pick: int, how: str) -> None:
        worker = some(self.live, pick)
        if how == "replaced":
            self.come(worker.index, ready=False)
        else:
            self.tell(
                WorkerGone(worker) if how == "goodbye" else WorkerLost(worker, "kill -9", with_others=pick % 2 == 0)
            )

    @precondition(lambda self: self.busy)
    @rule(pick=PICK, n=st.integers(1, 3), value=VALUES, twice=st.booleans())
    def a_trial_reports(self, pick: int, n: int, value: float, twice: bool) -> None:
        event = self.report(some(self.busy, pick), n, value)
        if twice:
            self.tell(event)

    @precondition(lambda self: self.busy)
    @rule(pick=PICK)
    def a_trial_saves(self, pick: int) -> None:
        self.save(some(self.busy, pick))

    @precondition(lambda self: self.holding)
    @rule(pick=PICK, outcome=OUTCOMES, value=VALUES, twice=st.booleans())
    def a_trial_finishes(self, pick: int, outcome: OutcomeKind, value: float, twice: bool) -> None:
        """Also on a worker that does not know that it was given up."""
        event = self.finish(some(self.holding, pick), outcome, value)
        if twice:
            self.tell(event)

    @precondition(lambda self: self.busy)
    @rule(pick=PICK, value=VALUES)
    def a_trial_is_trained(self, pick: int, value: float) -> None:
        self.train(some(self.busy, pick), value)

    @precondition(lambda self: len(self.past) > self.repeated)
    @rule(pick=PICK)
    def a_message_comes_again(self, pick: int) -> None:
        self.tell(some(self.past[-8:], pick))
        self.repeated = len(self.past)

    @precondition(lambda self: self.asked)
    @rule()
    def the_optimizer_answers(self) -> None:
        self.answer()

    @precondition(lambda self: self.live and len(self.journal) > self.waited)
    @rule(seconds=st.sampled_from([7.0, 20.0]), silent=st.booleans())
    def time_passes(self, seconds: float, silent: bool) -> None:
        self.waited = len(self.journal)
        self.now += seconds
        for worker in [] if silent else self.live:
            self.tell(WorkerSeen(worker))
        self.tell(Tick())
        for worker in self.live:
            assert self.now - self.machine.workers[worker.index].seen <= HEARTBEAT
        assert all(worker in self.stopping for worker in self.busy if self.is_late(worker))

    @precondition(lambda self: len(self.journal) > self.booted + 6 and self.machine.ending is None)
    @rule(outcome=OUTCOMES)
    def the_user_stops_it(self, outcome: OutcomeKind) -> None:
        self.tell(StopRequested(Ending.INTERRUPTED))
        assert self.leaving >= set(self.live)
        for worker in self.busy:
            self.finish(worker, outcome, 0.5)

    @precondition(lambda self: len(self.journal) > self.booted + 6)
    @rule()
    def the_driver_dies_and_the_run_is_resumed(self) -> None:
        self.boot()
        self.repeated, self.waited = 0, -1
        assert not self.ledger.counts[TrialState.RUNNING]

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def the_journal_is_the_study(self) -> None:
        assert said(self.ledger) == said(self.machine.study)

    @invariant()
    def each_running_trial_has_one_live_worker(self) -> None:
        held = [worker.trial for worker in self.machine.workers.values() if worker.trial is not None]
        running = [trial.id for trial in self.ledger.trials if trial.state is TrialState.RUNNING]
        assert sorted(held) == running
        assert {self.holding[worker].trial for worker in self.busy} == set(running)

    @invariant()
    def each_step_is_entered_once(self) -> None:
        for trial in self.ledger.trials:
            steps = trial.curve.steps.tolist()
            assert steps == sorted(set(steps))

    @invariant()
    def no_trial_is_lost_too_often(self) -> None:
        assert all(trial.losses < self.search.max_attempts for trial in self.ledger.trials)

    @invariant()
    def a_worker_is_idle_only_if_nothing_is_due(self) -> None:
        states = [worker.state for worker in self.machine.workers.values()]
        if self.machine.ending is None and WorkerState.IDLE in states:
            assert not self.ledger.counts[TrialState.PENDING]
            assert self.ledger.next_promotion() is None
            assert len(self.ledger.trials) == self.search.size or not self.waiting

    def teardown(self) -> None:
        if "machine" in vars(self):  # not if the draw of the search was cut short
            self.settle()


Supervisor.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestGang = Supervisor.TestCase


# -- what it found ----------------------------------------------------------------------------------


FIRST = WorkerId(0, 0)


def witness(name: str, *, n_trials: int, workers: int) -> Witness:
    witness = Witness()
    witness.begin(Search(name, "max", n_trials, 0, max_attempts=3, trial_timeout=None, workers=workers, prompt=True))
    return witness


def test_a_trial_is_not_handed_from_one_silent_worker_to_another() -> None:
    run = witness("random", n_trials=1, workers=3)
    run.now = 20.0
    run.tell(Tick())
    (trial,) = run.ledger.trials
    assert (trial.state, trial.losses) == (TrialState.PENDING, 1)
    run.settle()


def test_a_parked_worker_is_called_by_the_result_that_makes_a_promotion_due() -> None:
    run = witness("promotion", n_trials=2, workers=2)
    run.finish(FIRST, "returned", 0.2)
    assert run.machine.workers[0].state is WorkerState.IDLE
    run.report(WorkerId(1, 0), 1, 0.1)
    assert run.holding[FIRST] == Assign(0, 2, run.ledger.trials[0].config, 2, (), "loss", max_budget=4)
    run.settle()


def test_a_verdict_that_came_too_late_does_not_stop_the_next_attempt_of_a_resumed_run() -> None:
    run = witness("patience", n_trials=2, workers=1)
    run.report(FIRST, 2, 0.2)
    assert run.stopping == {FIRST}
    run.finish(FIRST, "returned", 0.2)
    run.finish(FIRST, "returned", 0.1)
    promoted = run.ledger.trials[0]
    assert (promoted.state, promoted.attempt) == (TrialState.RUNNING, 2)
    run.boot()
    assert run.ledger.trials[0].state is TrialState.PENDING
    run.settle()
