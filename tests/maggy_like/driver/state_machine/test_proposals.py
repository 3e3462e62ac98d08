"""How far ahead an optimizer is asked, and what it knows of the proposals that wait."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hand import Hand
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.driver.simulate import simulate
from maggy_like.driver.state_machine.interface import SuggestionReady, Tick, TrialSaid, WorkerLost
from maggy_like.driver.state_machine.proposals import Prefetch, Proposals
from maggy_like.errors import OptimizerError
from maggy_like.protocol.messages import (
    Assign,
    Checkpointed,
    Shutdown,
)
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import WAIT, Answer, Decision, History, Observation, Optimizer, Pending, Proposal
from optimizers.core.events import AttemptEnded, AttemptStarted, Event
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA, Mode
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
from optimizers.schedulers.successive_halving import PromotionScheduler, rung_levels
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


# -- optimizers that wait, and trials that go on from the states of others ------------------------


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


@pytest.mark.parametrize(
    ("answer", "why"), [(WAIT, " (it waits for a result, and nothing runs)"), (None, "")], ids=["wait", "none"]
)
def test_a_search_whose_optimizer_has_nothing_left_ends_and_says_so(answer: Answer, why: str) -> None:
    class Stuck(RandomSearch):
        adaptive = True

        def ask(self, index: int, history: History) -> Answer:  # type: ignore[override]
            return super().ask(index, history) if index == 0 else answer

    hand = Hand(Stuck(), n_trials=9, study={"direction": "max"}).start()
    worker = hand.join(0)
    assert hand.machine.ending is None
    assert hand.finish(worker, 0.5) == [Shutdown()]
    assert hand.machine.ending == "completed"
    assert hand.shown == [f"Stuck proposes no further configuration{why}, so the search ends after 1 of 9 trials"]


def test_a_search_that_has_all_trials_says_nothing_of_its_optimizer() -> None:
    hand = Hand(n_trials=1, study={"direction": "max"}).start()
    hand.finish(hand.join(0), 0.5)
    assert hand.machine.ending == "completed"
    assert hand.shown == []


def test_a_line_says_that_workers_wait_for_the_optimizer_and_again_after_twice_the_time() -> None:
    hand = Hand(heartbeat_timeout=1e6)
    hand.machine.start(0.0)  # asks for the first proposal, which never comes
    shown: dict[float, str] = {}
    for hand.now in (31.0, 40.0, 75.0, 81.0, 100.0):
        if hand.now == 40.0:
            hand.join(0)
        hand.tell(Tick())
        shown.update((hand.now, text) for text in hand.shown)
        hand.shown.clear()
    assert list(shown) == [40.0, 81.0]
    assert shown[40.0].startswith("the optimizer has computed proposal 0 for 40 s, and 1 worker waits for it; if it")


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


# -- A search that ends by its number of trials has trained something to the end, however small it is


class Recorded(Study):
    """A study that keeps its events."""

    def apply(self, event: Event) -> Decision:
        vars(self).setdefault("events", []).append(event)
        return super().apply(event)


def halving(mode: Mode) -> Optimizer:
    """The rungs of ``"asha"``, without its model, which is slow."""
    made = ASHA(mode=mode)
    made.sampler = RandomSearch()
    return made


KINDS: dict[str, Callable[[Mode], Optimizer]] = {
    "plain": lambda mode: ASHA(sampler="random", mode=mode),
    "eta=2": lambda mode: ASHA(sampler="random", eta=2, mode=mode),
    "asha": halving,
    "hyperband": lambda mode: ASHA(sampler="random", mode=mode, brackets=None),
    "patience": lambda mode: Patience(ASHA(sampler="random", mode=mode), patience=100),
    "threshold": lambda mode: Threshold(ASHA(sampler="random", mode=mode), step=1, worse_than=9.0, direction="min"),
}


def learn(config: Config, step: int) -> tuple[float, float]:
    """A loss that falls at a pace of its own, in steps that take a time of their own; curves cross."""
    return config["x"] + config["pace"] / step, 1.0 + config["pace"]


def search(optimizer: Optimizer, n_trials: int, max_budget: int, workers: int, seed: int) -> Recorded:
    space = {"x": Float(0, 1), "pace": Float(0, 2)}
    study = Recorded(space, optimizer, direction="min", seed=seed, max_budget=max_budget, n_trials=n_trials)
    simulate(study, learn, workers=workers)
    return study


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    mode=st.sampled_from(["promotion", "stopping"]),
    n_trials=st.integers(1, 12),
    max_budget=st.sampled_from([1, 2, 3, 5, 9, 20, 27]),
    workers=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_some_training_completes(
    kind: str, mode: Mode, n_trials: int, max_budget: int, workers: int, seed: int
) -> None:
    optimizer = KINDS[kind](mode)
    study = search(optimizer, n_trials, max_budget, workers, seed)
    completed = [trial for trial in study.trials if trial.state is TrialState.COMPLETED]
    assert len(study.trials) == n_trials
    assert completed
    assert all(trial.step == max_budget for trial in completed)
    assert study.closing_promotion() is None
    if isinstance(study.scheduler, PromotionScheduler) and isinstance(optimizer, ASHA):
        counts = [len(rung) for rung in study.scheduler.rungs]
        etas = optimizer.etas(optimizer.levels(max_budget))
        assert all(above <= max(1, below // eta) for eta, (below, above) in zip(etas, pairwise(counts), strict=False))
    replayed = Recorded(study.problem.space, KINDS[kind](mode), direction="min", seed=seed, max_budget=max_budget)
    for event in study.events:
        replayed.apply(event)
    assert repr(replayed.trials) == repr(study.trials)
    assert replayed.closing_promotion() is None


@pytest.mark.parametrize(("n_trials", "max_budget"), [(10, 27), (20, 27), (5, 9)])
@pytest.mark.parametrize("seed", range(3))
def test_the_stopping_form_ends_a_small_search_with_a_full_training(n_trials: int, max_budget: int, seed: int) -> None:
    study = search(halving("stopping"), n_trials, max_budget, 2, seed)
    assert study.counts[TrialState.COMPLETED] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["promotion", "stopping"])
@pytest.mark.parametrize("n_trials", [54, 270])
def test_about_as_many_trainings_complete_as_the_schedule_means(mode: Mode, n_trials: int) -> None:
    studies = [search(ASHA(sampler="random", mode=mode), n_trials, 27, 4, seed) for seed in range(examples(10))]
    meant = ASHA(sampler="random", mode=mode).full_trainings(studies[0].problem)
    assert meant == pytest.approx(n_trials / 27)
    mean = np.mean([study.counts[TrialState.COMPLETED] for study in studies])
    assert meant - 1 <= mean <= 2 * meant + 2


def test_at_the_close_the_best_at_rest_is_trained_on_once_nothing_runs() -> None:
    study = search(ASHA(sampler="random"), 5, 27, 3, 0)
    (completed,) = (trial for trial in study.trials if trial.state is TrialState.COMPLETED)
    starts = [event for event in study.events if isinstance(event, AttemptStarted)]
    assert [event.trial for event in starts if event.attempt > 1] == [completed.id] * 3
    assert [event.budget for event in starts if event.trial == completed.id] == list(rung_levels(27))


def test_a_rule_that_stops_the_last_training_has_the_last_word() -> None:
    """Else each trial at rest would be trained on until the rule stops it too."""
    rule = Threshold(ASHA(sampler="random"), step=5, worse_than=-1.0, direction="min")
    study = search(rule, 8, 9, 2, 0)
    assert (study.counts[TrialState.COMPLETED], study.counts[TrialState.STOPPED]) == (0, 1)


def test_a_median_rule_around_it_leaves_a_training_or_has_stopped_it() -> None:
    for seed in range(5):
        study = search(MedianRule(ASHA(sampler="random"), grace=3), 9, 27, 2, seed)
        assert study.counts[TrialState.COMPLETED] + study.counts[TrialState.STOPPED] >= 1


def test_one_that_fails_at_the_close_makes_room_for_the_next() -> None:
    study = Study({"x": Float(0, 1)}, ASHA(sampler="random"), direction="min", max_budget=9, n_trials=4)
    while (trial := study.ask()) is not None:
        if trial.attempt > 1 and trial.id < 3:
            study.fail(trial)
        else:
            study.tell(trial, float(trial.id))
    assert [trial.state for trial in study.trials] == [TrialState.FAILED] * 3 + [TrialState.COMPLETED]
