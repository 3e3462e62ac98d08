"""How far ahead an optimizer is asked, and what it knows of the proposals that wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.driver.simulate import simulate
from maggy_like.driver.state_machine.inputs import SuggestionReady
from maggy_like.driver.state_machine.proposals import Prefetch, Proposals
from optimizers.core.base import History, Observation, Optimizer, Pending, Proposal
from optimizers.core.events import AttemptEnded, AttemptStarted
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space import Config
from optimizers.space.domains import Float, Integer


class Fresh(Optimizer):
    """Proposes the smallest integer that is neither observed nor pending, and keeps what it was told."""

    def __init__(self) -> None:
        self.pending: list[dict[int, Config]] = []

    def ask(self, index: int, history: History) -> Config | None:
        self.pending.append(dict(history.pending))
        known = [config["n"] for config in history.pending.values()]
        known += [seen.config["n"] for seen in history.observations]
        return next({"n": n} for n in range(1, 1000) if n not in known)


class Loop:
    """The optimizer's side and the workers', by hand; an ask takes ``seconds``."""

    def __init__(self, *, seconds: float, workers: int, points: Any = (), n_trials: int = 50) -> None:
        self.optimizer = Fresh()
        self.study = Study({"n": Integer(1, 1000)}, self.optimizer, n_trials=n_trials, points=points)
        self.proposals = Proposals(self.study, workers)
        self.proposals.go_on()
        self.seconds = seconds
        self.now = 0.0

    def think(self) -> int:
        """Answer questions until there are none; how many."""
        asked = 0
        while (question := self.proposals.ask(self.now)) is not None:
            asked += 1
            for update in question.updates:
                self.study.history.apply(update)
            config = self.optimizer.ask(question.index, self.study.history)
            self.now += self.seconds
            self.proposals.answer(SuggestionReady(question.index, self.study.checked(config)), self.now)
        return asked

    def take(self, wanted: float) -> int:
        """A free worker takes a trial; its number."""
        created = self.proposals.take(wanted)
        assert created is not None
        self.study.apply(created)
        return created.trial

    def end(self, trial: int) -> None:
        self.study.apply(AttemptStarted(trial, 1, 0, 1, self.now))
        self.study.apply(AttemptEnded(trial, 1, TrialState.COMPLETED, self.now, 0.5))


# -- how far ahead ----------------------------------------------------------------------------------


def test_asks_that_take_no_time_are_one_ahead() -> None:
    loop = Loop(seconds=0.0, workers=8)
    assert loop.think() == 1
    for _ in range(10):
        loop.take(loop.now)
        assert loop.think() == 1


def test_before_the_first_trial_each_worker_gets_a_proposal_if_asks_take_time() -> None:
    assert Loop(seconds=0.1, workers=8).think() == 8


def test_trials_far_apart_need_one_proposal_and_a_burst_needs_as_many_as_it_is_long() -> None:
    prefetch = Prefetch(workers=8)
    prefetch.asked(0.1)
    for n in range(16):
        prefetch.taken(float(n))
    assert prefetch.depth == 1
    for wanted in (20.0, 20.01, 20.02):
        prefetch.taken(wanted)
    assert prefetch.depth == 3
    for n in range(30, 46):
        prefetch.taken(float(n))
    assert prefetch.depth == 1  # what was long ago does not count


def test_workers_that_waited_count_from_when_they_were_free() -> None:
    """Trials began one ask apart because workers waited: no reason to think that one proposal is enough."""
    prefetch = Prefetch(workers=4)
    prefetch.asked(0.1)
    for wanted in (0.0, 0.0, 0.0):
        prefetch.taken(wanted)
    assert prefetch.depth == 3


def test_the_slowest_of_the_newest_asks_counts() -> None:
    prefetch = Prefetch(workers=4)
    for seconds in (0.5, *[0.001] * 7):
        prefetch.asked(seconds)
    prefetch.taken(0.0)
    prefetch.taken(0.3)
    assert prefetch.depth == 2
    prefetch.asked(0.001)
    for n in range(16):
        prefetch.taken(1.0 + n)
    assert prefetch.depth == 1


def test_an_optimizer_that_cannot_keep_up_is_asked_for_the_whole_gang_and_recovers() -> None:
    prefetch = Prefetch(workers=4)
    prefetch.asked(1.0)
    for n in range(100):
        prefetch.taken(0.1 * n)
    assert prefetch.depth == 4
    for n in range(16):
        prefetch.taken(20.0 + 2.0 * n)
    assert prefetch.depth == 1


@given(
    seconds=st.lists(st.floats(0.0, 10.0), max_size=12),
    gaps=st.lists(st.floats(-1.0, 10.0), max_size=40),
    workers=st.integers(1, 9),
)
@settings(max_examples=examples(50))
def test_the_depth_lies_between_one_and_the_gang(seconds: list[float], gaps: list[float], workers: int) -> None:
    prefetch, now = Prefetch(workers), 1.7e9
    for n, gap in enumerate(gaps):
        if n < len(seconds):
            prefetch.asked(seconds[n])
        now += gap
        prefetch.taken(now)
        assert 1 <= prefetch.depth <= workers


def test_what_does_not_depend_on_results_is_asked_for_the_whole_gang() -> None:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=20)
    proposals = Proposals(study, workers=5)
    proposals.go_on()
    asked = 0
    while (question := proposals.ask(0.0)) is not None:
        proposals.answer(SuggestionReady(question.index, Proposal({"x": 0.5})), 0.0)
        asked += 1
    assert asked == 5


def test_no_more_is_asked_than_there_will_be_trials() -> None:
    loop = Loop(seconds=0.1, workers=8, points=[{"n": 5}], n_trials=4)
    assert loop.think() == 3
    assert [loop.take(0.0) for _ in range(4)] == [0, 1, 2, 3]
    assert loop.proposals.take(0.0) is None
    assert not loop.proposals.has_more


# -- what is known ----------------------------------------------------------------------------------


def test_points_and_proposals_that_wait_are_known_by_the_numbers_they_will_have() -> None:
    loop = Loop(seconds=0.1, workers=3, points=[{"n": 1}, {"n": 9}])
    loop.think()
    assert loop.optimizer.pending == [
        {0: {"n": 1}, 1: {"n": 9}},
        {0: {"n": 1}, 1: {"n": 9}, 2: {"n": 2}},
        {0: {"n": 1}, 1: {"n": 9}, 2: {"n": 2}, 3: {"n": 3}},
    ]
    taken = [loop.take(loop.now) for _ in range(5)]
    assert {number: loop.study.trials[number].config["n"] for number in taken} == {0: 1, 1: 9, 2: 2, 3: 3, 4: 4}


def test_a_trial_that_ended_before_the_next_question_is_not_pending() -> None:
    loop = Loop(seconds=0.1, workers=2)
    loop.think()
    first, _ = loop.take(0.0), loop.take(0.0)
    loop.end(first)
    question = loop.proposals.ask(loop.now)
    assert question is not None
    assert [update for update in question.updates if isinstance(update, Observation)]
    for update in question.updates:
        loop.study.history.apply(update)
    assert set(loop.study.history.pending) == {1}


def test_a_resumed_search_asks_again_for_what_waited_and_knows_all_trials() -> None:
    loop = Loop(seconds=0.1, workers=3, points=[{"n": 1}, {"n": 9}])
    loop.think()
    for _ in range(3):
        loop.take(0.0)
    again = Proposals(loop.study, workers=3)
    loop.study.take_updates()
    again.go_on()
    question = again.ask(0.0)
    assert question is not None
    assert (question.index, question.updates) == (1, ())


def test_a_resumed_search_tells_of_the_points_that_are_left() -> None:
    loop = Loop(seconds=0.1, workers=3, points=[{"n": 1}, {"n": 9}])
    loop.take(0.0)
    again = Proposals(loop.study, workers=3)
    again.go_on()
    question = again.ask(0.0)
    assert question is not None
    assert question.updates == (Pending(1, {"n": 9}), Pending(0, {"n": 1}))


@pytest.mark.parametrize("workers", [1, 4])
def test_nothing_is_proposed_twice_and_virtual_time_repeats_exactly(workers: int) -> None:
    def configs() -> list[int]:
        study = Study({"n": Integer(1, 1000)}, Fresh(), n_trials=20)
        simulate(study, lambda config, step: (0.0, 1.0 + config["n"] % 3), workers=workers)
        return [trial.config["n"] for trial in study.trials]

    assert configs() == configs() == list(range(1, 21))
