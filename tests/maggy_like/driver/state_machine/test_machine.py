from __future__ import annotations

import math

import pytest
from hand import Hand
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import (
    Append,
    AskOptimizer,
    Send,
    StopRequested,
    Tick,
    TrialSaid,
    WorkerBroken,
    WorkerGone,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    WorkerSeen,
)
from maggy_like.driver.state_machine.machine import LOG_LENGTH
from maggy_like.driver.state_machine.run import WorkerState
from maggy_like.errors import ConfigError, WorkerError
from maggy_like.protocol.endings import Ending, StopReason
from maggy_like.protocol.messages import (
    MAX_NAMES,
    Assign,
    Checkpointed,
    Decided,
    Finished,
    Refused,
    Reported,
    Shutdown,
    Stop,
)
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import AttemptEnded, AttemptStarted, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.space.domains import Float


def test_a_worker_gets_a_trial_when_it_is_ready_and_the_next_with_its_end() -> None:
    hand = Hand().start()
    worker = WorkerId(0, 0)
    assert hand.tell(WorkerJoined(worker, "host")) == []
    (first,) = hand.tell(WorkerReady(worker))
    assert isinstance(first, Assign)
    assert (first.trial, first.attempt, first.budget) == (0, 1, 9)
    (second,) = hand.finish(worker, 0.5)
    assert isinstance(second, Assign)
    assert second.trial == 1
    assert hand.states() == ["completed", "running"]


def test_every_event_is_appended_before_what_depends_on_it() -> None:
    hand = Hand(n_trials=1).start()
    worker = WorkerId(0, 0)
    hand.tell(WorkerJoined(worker, "host"))
    commands = hand.machine.handle(WorkerReady(worker), 0.0)
    kinds = [type(command.event) if isinstance(command, Append) else type(command) for command in commands]
    assert kinds == [TrialCreated, AttemptStarted, Send]


def test_the_search_ends_when_all_trials_have_and_shuts_the_gang_down() -> None:
    hand = Hand(n_trials=2).start()
    workers = [hand.join(0), hand.join(1)]
    hand.finish(workers[0], 0.1)
    assert hand.machine.ending is None
    assert hand.finish(workers[1], 0.2) == [Shutdown(), Shutdown()]
    assert hand.machine.ending == "completed"
    assert not hand.machine.is_over
    hand.tell(*(WorkerGone(worker) for worker in workers))
    assert hand.machine.is_over
    assert hand.study.best is not None
    assert hand.study.best.value == 0.2


def test_proposals_are_ready_before_a_worker_asks() -> None:
    hand = Hand(n_trials=10).start()
    assert hand.ready == 2
    commands = hand.machine.handle(WorkerJoined(WorkerId(0, 0), "host"), 0.0)
    commands += hand.machine.handle(WorkerReady(WorkerId(0, 0)), 0.0)
    assert [type(c) for c in commands] == [Append, Append, Send, AskOptimizer]


def test_points_come_first_and_count_as_trials() -> None:
    hand = Hand(n_trials=2, points=[{"x": 0.25}]).start()
    worker = hand.join(0)
    assert hand.assigned(worker).config == {"x": 0.25}
    hand.finish(worker, 1.0)
    hand.finish(worker, 1.0)
    assert hand.machine.ending == "completed"
    assert [event.ask for event in hand.events if isinstance(event, TrialCreated)] == [None, 0]


def test_a_lost_worker_s_trial_runs_again_on_another_from_its_checkpoint() -> None:
    hand = Hand(n_trials=1).start()
    worker = hand.join(0)
    hand.report(worker, 3, 0.5)
    hand.tell(TrialSaid(worker, Checkpointed(0, 1, 3, "00000/1-1.pkl")))
    hand.tell(WorkerLost(worker, "kill -9"))
    assert hand.states() == ["pending"]
    assert hand.replaced == [worker]
    other = hand.join(0, incarnation=1)
    assign = hand.assigned(other)
    assert (assign.trial, assign.attempt, assign.checkpoint) == (0, 2, "00000/1-1.pkl")


def test_stale_words_change_nothing() -> None:
    hand = Hand(n_trials=1).start()
    lost = hand.join(0)
    hand.tell(WorkerLost(lost, "frozen"))
    worker = hand.join(0, incarnation=1)
    before = list(hand.events)
    late = Finished(0, 1, "returned", 99.0)
    answers = hand.tell(
        TrialSaid(lost, late),
        TrialSaid(lost, Reported(0, 1, "quality", {"quality": ([9], [99.0])})),
        TrialSaid(worker, late),  # the right worker, but of a past attempt
        WorkerJoined(lost, "host"),
    )
    assert hand.events == before
    assert hand.machine.stale == 4
    assert [type(answer) for answer in answers] == [Refused, Refused, Refused]
    hand.finish(worker, 0.5)
    assert hand.study.trials[0].value == 0.5


def test_silence_loses_a_worker_and_beats_keep_it() -> None:
    hand = Hand(heartbeat_timeout=10.0).start()
    silent, beating = hand.join(0), hand.join(1)
    hand.now = 8.0
    hand.tell(WorkerSeen(beating))
    hand.now = 12.0
    hand.tell(Tick())
    states = [worker.state for worker in hand.machine.workers.values()]
    assert states == [WorkerState.LOST, WorkerState.BUSY]
    assert hand.replaced == [silent]


def test_a_time_in_which_the_driver_heard_nobody_is_held_against_nobody() -> None:
    hand = Hand(heartbeat_timeout=10.0).start()
    hand.join(0)
    hand.now = 30.0
    hand.tell(Tick(stalled=25.0))
    assert not hand.replaced
    hand.now = 36.0
    hand.tell(Tick())
    assert hand.replaced == [WorkerId(0, 0)]


def test_a_trial_past_its_time_is_stopped_and_fails() -> None:
    hand = Hand(n_trials=1, max_attempts=1, trial_timeout=5.0).start()
    hand.now = 3.0
    worker = hand.join(0)
    hand.now = 7.0
    assert hand.tell(WorkerSeen(worker), Tick(), Tick()) == []
    hand.now = 9.0
    assert hand.tell(WorkerSeen(worker), Tick(), Tick()) == [Stop(0, 1, reason=StopReason.FAULT)]
    hand.finish(worker, outcome="stopped")
    failure = hand.study.trials[0].failure
    assert failure is not None
    assert failure.kind == "timeout"
    assert "trial_timeout=5 s" in failure.message


def test_nothing_reported_and_nothing_returned_is_a_failure_that_says_so() -> None:
    hand = Hand(n_trials=1).start()
    worker = hand.join(0)
    hand.finish(worker)
    assert hand.states() == ["failed"]
    assert any("returned no number and reported nothing" in text for text in hand.shown)


def test_stopping_asha_answers_at_milestones() -> None:
    hand = Hand(ASHA(sampler="random", mode="stopping"), n_trials=3).start()
    worker = hand.join(0)
    assert hand.assigned(worker).milestones == (1, 3)
    assert hand.report(worker, 1, 2.0, awaiting=True) == [Decided(0, 1, stop=False)]  # the best so far
    hand.finish(worker, 2.0)
    assert hand.report(worker, 1, 1.0, awaiting=True) == [Decided(1, 1, stop=True)]  # floor(2 / 3) go on
    hand.finish(worker, outcome="stopped")
    assert hand.states() == ["completed", "stopped", "running"]
    assert hand.report(worker, 1, 3.0, awaiting=True) == [Decided(2, 1, stop=False)]


def test_a_worker_lost_after_the_verdict_leaves_a_stopped_trial() -> None:
    hand = Hand(ASHA(sampler="random", mode="stopping"), n_trials=1).start()
    worker = hand.join(0)
    hand.report(worker, 1, math.nan, awaiting=True)
    hand.tell(WorkerLost(worker, "kill -9"))
    assert hand.states() == ["stopped"]


def test_promotion_asha_pauses_and_promotes_the_best() -> None:
    hand = Hand(ASHA(sampler="random"), n_trials=3).start()
    worker = hand.join(0)
    for value in (0.1, 0.3, 0.2):
        assert hand.assigned(worker).budget == 1
        hand.report(worker, 1, value)
        hand.finish(worker)
    promoted = hand.assigned(worker)
    assert (promoted.trial, promoted.attempt, promoted.budget) == (1, 2, 3)
    hand.finish(worker, 0.5)
    last = hand.assigned(worker)  # nothing is due any more, so the best at rest is trained to the end
    assert (last.trial, last.attempt, last.budget) == (1, 3, 9)
    hand.finish(worker, 0.6)
    assert hand.machine.ending == "completed"
    assert hand.states() == ["paused", "completed", "paused"]
    assert (hand.study.trials[1].curve.steps.tolist(), hand.study.trials[1].step) == ([1], 9)


def test_a_parked_worker_gets_a_promotion_that_comes_due() -> None:
    hand = Hand(ASHA(sampler="random"), n_trials=3).start()
    first, second = hand.join(0), hand.join(1)
    hand.finish(first, 0.1)
    hand.finish(second, 0.3)
    assert hand.machine.workers[1].state is WorkerState.IDLE
    hand.finish(first, 0.2)
    assert [worker.trial for worker in hand.machine.workers.values() if worker.trial is not None] == [1]
    assert hand.study.trials[1].state is TrialState.RUNNING


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_told_once_and_never_promoted(value: float) -> None:
    hand = Hand(ASHA(sampler="random"), n_trials=3).start()
    worker = hand.join(0)
    for _ in range(3):
        hand.report(worker, 1, value)
        hand.finish(worker)
    assert hand.machine.ending == "completed"
    assert hand.states() == ["paused"] * 3
    assert len([text for text in hand.shown if "it ranks worst" in text]) == 3
    assert hand.study.best is None


def test_a_store_that_is_not_shared_ends_promotion_before_any_trial() -> None:
    hand = Hand(ASHA(sampler="random")).start()
    assert hand.tell(WorkerJoined(WorkerId(0, 0), "far", store_unseen="")) == [Shutdown()]
    assert isinstance(hand.machine.error, ConfigError)
    assert "'far' cannot access the store" in str(hand.machine.error)
    assert hand.study.trials == []


def test_a_worker_that_cannot_load_the_function_ends_the_search() -> None:
    hand = Hand().start()
    hand.tell(WorkerJoined(WorkerId(0, 0), "host"), WorkerBroken(WorkerId(0, 0), "no module named 'foo'"))
    assert isinstance(hand.machine.error, WorkerError)


def test_a_worker_runs_its_own_trial_as_its_own_rank() -> None:
    hand = Hand(n_trials=2).start()
    worker, idle = hand.join(0), WorkerId(1, 0)
    hand.tell(WorkerJoined(idle, "host"))
    assert hand.machine.runs(worker, 0, None)
    assert not hand.machine.runs(worker, 0, 0)  # there are no ranks
    assert not hand.machine.runs(worker, 1, None)
    assert not hand.machine.runs(idle, 0, None)
    pair = Hand(n_trials=2, workers=2, workers_per_trial=2).start()
    first, second = pair.join(0), pair.join(1)
    assert [pair.machine.runs(second, 0, rank) for rank in (None, 0, 1)] == [False, False, True]
    assert [pair.machine.runs(first, 0, rank) for rank in (None, 0, 1)] == [False, True, False]


def test_a_stop_keeps_what_there_is_and_leaves_the_rest_to_be_resumed() -> None:
    hand = Hand().start()
    worker = hand.join(0)
    hand.report(worker, 1, 0.5)
    assert hand.tell(StopRequested(Ending.INTERRUPTED)) == [Shutdown()]
    hand.finish(worker, outcome="stopped")
    hand.tell(WorkerGone(worker))
    assert hand.machine.is_over
    assert hand.states() == ["pending"]
    assert hand.study.best is hand.study.trials[0]
    assert hand.study.trials[0].losses == 0


def test_replay_gives_the_same_study_and_goes_on() -> None:
    hand = Hand(ASHA(sampler="random"), n_trials=9).start()
    worker = hand.join(0)
    for value in (0.1, 0.3, 0.2, 0.5):
        hand.report(worker, 1, value)
        hand.finish(worker)
    running = hand.assigned(worker)
    again = Hand(ASHA(sampler="random"), n_trials=9)
    again.machine.replay(hand.events)
    assert again.study.trials == hand.study.trials
    assert again.study.next_promotion() == hand.study.next_promotion()
    again.start()
    ended = again.events[0]
    assert isinstance(ended, AttemptEnded)
    assert (ended.trial, ended.state) == (running.trial, TrialState.PENDING)
    resumed = again.join(0)
    assert again.assigned(resumed).trial == running.trial
    assert again.assigned(resumed).attempt == running.attempt + 1


def test_promotions_are_no_losses_of_the_gang() -> None:
    """A trial that was promoted more often than the gang may be lost still has all of its attempts."""
    hand = Hand(ASHA(sampler="random", eta=2), n_trials=8, workers=1, max_attempts=2).start()
    worker = hand.join(0)
    while (assign := hand.assigned(worker)).attempt < 3:
        hand.finish(worker, float(assign.trial))
    trial = hand.study.trials[assign.trial]
    for incarnation, state in enumerate((TrialState.RUNNING, TrialState.FAILED), start=1):
        hand.tell(WorkerLost(worker, "the stage fell", with_others=True))
        worker = hand.join(0, incarnation)
        assert (trial.stage_losses, trial.state) == (1, state)


def test_a_trial_has_a_bounded_number_of_metrics_whatever_its_worker_says() -> None:
    hand = Hand(n_trials=1).start()
    worker = hand.join(0)
    for step, first in ((1, 0), (2, 6000), (3, 12_000)):
        columns = {f"m{number}": ([step], [0.5]) for number in range(first, first + 6000)}
        hand.tell(TrialSaid(worker, Reported(0, 1, "loss", {**columns, "loss": ([step], [0.5])})))
    curves = hand.study.trials[0].curves
    assert len(curves) == MAX_NAMES
    assert list(curves["loss"].steps) == [1, 2, 3]
    assert hand.shown == ["reported more than 10000 different metrics; others are left out"]


def test_a_trial_that_was_slowed_is_told_of_once() -> None:
    hand = Hand(n_trials=2).start()
    for worker in (hand.join(0), hand.join(1)):
        number = hand.assigned(worker).trial
        hand.tell(TrialSaid(worker, Reported(number, 1, "loss", {"loss": ([1], [0.5])}, slowed=True)))
    assert hand.shown == [
        "reports faster than the driver can record (metrics: 1), so its report() waits; report fewer, or less often"
    ]


def test_a_function_that_its_budget_has_ended_is_told_of_once_with_both_numbers() -> None:
    hand = Hand(ASHA(sampler="random", mode="promotion"), n_trials=2, study={"direction": "max"}).start()
    for worker in (hand.join(0), hand.join(1)):
        hand.report(worker, 1, 0.5)
        hand.finish(worker, cut_at=2)
    (line,) = hand.shown
    assert line.startswith("reported step 2 with a budget of 1 step, and max_budget=9, which ended the function")
    assert line.endswith("loop up to reporter.budget, or use a larger max_budget")


# -- silent workers -------------------------------------------------------------------------------


PATIENCE = 5.0

STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "hear", "stand still", "lose", "look", "look"]), st.integers(0, 3)), max_size=60
)


@given(steps=STEPS)
def test_all_that_are_silent_are_found_although_few_looks_go_over_all(steps: list[tuple[str, int]]) -> None:
    hand = Hand(workers=4, heartbeat_timeout=PATIENCE).start()
    seen: dict[int, float] = {}  # of the live workers, by index
    incarnations = dict.fromkeys(range(4), -1)
    for now, (what, number) in enumerate(steps):
        hand.now = float(now)
        if what == "join":
            incarnations[number] += 1
            hand.tell(WorkerJoined(WorkerId(number, incarnations[number]), "host", (), None))
            seen[number] = hand.now
        elif what in ("stand still", "look"):
            stalled = float(number) if what == "stand still" else 0.0
            seen = {it: min(hand.now, last + stalled) for it, last in seen.items()}
            silent = {it for it, last in seen.items() if hand.now - last > PATIENCE}
            hand.tell(Tick(stalled=stalled))
            lost = {it for it in seen if hand.machine.workers[it].state is WorkerState.LOST}
            assert lost == silent
            seen = {it: last for it, last in seen.items() if it not in silent}
        elif number in seen and what == "hear":
            hand.tell(WorkerSeen(WorkerId(number, incarnations[number])))
            seen[number] = hand.now
        elif number in seen and what == "lose":
            hand.tell(WorkerLost(WorkerId(number, incarnations[number]), "killed"))
            del seen[number]


# -- A state machine's inputs, handed to another one, lead to the same decisions ------------------


LOG_STEPS = st.lists(st.tuples(st.sampled_from(["report", "finish", "lose", "join", "tick"]), st.integers(0, 2)))


@given(steps=LOG_STEPS)
def test_logged_inputs_lead_to_the_same_decisions(steps: list[tuple[str, int]]) -> None:
    hand = Hand(ASHA(sampler="random"), n_trials=6, workers=3).start()
    incarnations = [0, 0, 0]
    for index in range(3):
        hand.join(index)
    for number, (what, index) in enumerate(steps):
        hand.now += 1.0
        worker = hand.machine.workers[index]
        busy = worker.is_live and worker.attempt is not None
        if what == "report" and busy:
            hand.report(worker.id, hand.study.trials[hand.assigned(worker.id).trial].step + 1, number / 10)
        elif what == "finish" and busy:
            hand.finish(worker.id, number / 10)
        elif what == "lose" and worker.is_live:
            hand.tell(WorkerLost(worker.id, "killed"))
        elif what == "join" and not worker.is_live:
            incarnations[index] += 1
            hand.join(index, incarnations[index])
        elif what == "tick":
            hand.tell(Tick())
    again = Study({"x": Float(0, 1)}, ASHA(sampler="random"), max_budget=9, n_trials=6)
    machine = StateMachine(again, size=3)
    machine.start(0.0)
    for now, event in hand.machine.log:
        machine.handle(event, now)
    assert again.trials == hand.study.trials
    assert machine.ending == hand.machine.ending
    assert {it.id: it.state for it in machine.workers.values()} == {
        it.id: it.state for it in hand.machine.workers.values()
    }


def test_the_log_has_a_bound() -> None:
    hand = Hand(RandomSearch()).start()
    for _ in range(LOG_LENGTH + 10):
        hand.tell(Tick())
    assert len(hand.machine.log) == LOG_LENGTH
