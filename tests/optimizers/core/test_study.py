from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import Decision, History, Observation, Optimizer, Pending
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Event,
    Measured,
    TrialCreated,
    from_json,
    to_json,
)
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.core.trial import Checkpoint, Failure, FailureKind, Trial, TrialState
from optimizers.errors import UserError
from optimizers.samplers.non_adaptive import Grid, RandomSearch
from optimizers.schedulers.asha import ASHA, Mode
from optimizers.schedulers.stopping import Patience
from optimizers.space import Config
from optimizers.space.domains import Float

Direction = Literal["max", "min"]
SPACE = {"x": Float(0, 1)}


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "random": RandomSearch,
    "promotion": lambda: ASHA(sampler="random", eta=2),
    "stopping": lambda: ASHA(sampler="random", eta=2, mode="stopping"),
    "patience": lambda: Patience(ASHA(sampler="random", eta=2, min_budget=2), patience=2),
}


def search(study: Study, quality: Callable[[Trial], float]) -> int:
    """Run a study to its end, one trial at a time with a report a step; how many steps that took."""
    steps = 0
    while (trial := study.ask()) is not None:
        for step in range(trial.step + 1, trial.budget + 1):
            steps += 1
            if study.report(trial, step, quality(trial)) is Decision.STOP:
                break
        else:
            study.tell(trial)
    return steps


def started(study: Study) -> Trial:
    trial = study.ask()
    assert trial is not None
    return trial


# -- ask and tell -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("direction", "best"), [("max", 6.0), ("min", 0.0)])
def test_random_search_ends_after_n_trials(direction: Direction, best: float) -> None:
    study = Study(SPACE, RandomSearch(), direction=direction, max_budget=3, n_trials=7)
    assert search(study, lambda trial: float(trial.id)) == 7 * 3
    assert study.counts == Counter({TrialState.COMPLETED: 7})
    assert study.best.value == best
    assert study.ask() is None


def test_a_grid_ends_by_itself_and_tries_each_point_once() -> None:
    study = Study({"x": Float(0, 1), "act": ["relu", "gelu"], "bias": [True, False]}, Grid(3))
    search(study, lambda trial: 0.0)
    assert len(study.trials) == 3 * 2 * 2
    assert len({tuple(trial.config.items()) for trial in study.trials}) == 12


@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("seed", range(5))
def test_promotion_is_drained_to_the_end(direction: Direction, seed: int) -> None:
    """27 trials, then exactly 9, 3 and 1 go on, whatever their order; the best one reaches the top."""
    qualities = list(range(27))
    random.Random(seed).shuffle(qualities)
    study = Study(SPACE, ASHA(sampler="random", eta=3), direction=direction, max_budget=27, n_trials=27)
    steps = search(study, lambda trial: float(qualities[trial.id]))
    assert steps == 27 * 1 + 9 * 2 + 3 * 6 + 1 * 18
    assert Counter(trial.step for trial in study.trials) == {1: 18, 3: 6, 9: 2, 27: 1}
    assert study.counts == Counter({TrialState.PAUSED: 26, TrialState.COMPLETED: 1})
    (top,) = (trial for trial in study.trials if trial.state is TrialState.COMPLETED)
    assert qualities[top.id] == (26 if direction == "max" else 0)
    assert study.best is top
    assert top.attempt == 4


@pytest.mark.parametrize(("every", "seen"), [(1, [1, 3, 9]), (2, [2, 4, 10]), (5, [5, 10]), (10, [10]), (27, [])])
def test_the_optimizer_sees_the_first_report_at_or_past_each_rung_of_a_running_trial(
    every: int, seen: list[int]
) -> None:
    optimizer = ASHA(sampler="random", mode="stopping")
    reported, batched = (Study(SPACE, optimizer, direction="max", max_budget=27) for _ in range(2))
    steps = list(range(every, 28, every))
    trial, other = started(reported), started(batched)
    for step in steps:
        reported.report(trial, step, 0.5)
    batched.apply(Measured(other.id, other.attempt, "value", {"value": (steps, [0.5] * len(steps))}))
    updates = [update for update in batched.take_updates() if isinstance(update, Observation)]
    for observations in (reported.history.observations, updates):
        assert [observation.step for observation in observations if not observation.ended] == seen


@pytest.mark.parametrize(
    ("direction", "reached"),
    [
        # Each is better than all before.
        ("max", {27: 27}),
        # Each is worse than all before: but for the first, none is ever in the best third as it arrives.
        ("min", {1: 26, 27: 1}),
    ],
)
def test_stopping_looks_at_those_that_came_before(direction: Direction, reached: dict[int, int]) -> None:
    study = Study(
        SPACE, ASHA(sampler="random", eta=3, mode="stopping"), direction=direction, max_budget=27, n_trials=27
    )
    steps = search(study, lambda trial: float(trial.id))
    assert Counter(trial.step for trial in study.trials) == reached
    assert steps == sum(step * n for step, n in reached.items())
    assert study.counts[TrialState.COMPLETED] == reached.get(27, 0)


class Constant(Optimizer):
    """Proposes ``config`` and keeps what it was told."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.seen: list[tuple[int, list[Observation], dict[int, Config]]] = []

    def ask(self, index: int, history: History) -> Config:
        self.seen.append((index, list(history.observations), dict(history.pending)))
        return self.config


@pytest.mark.parametrize(("direction", "loss"), [("max", -0.5), ("min", 0.5)])
def test_the_optimizer_is_told_losses_and_what_is_pending(direction: Direction, loss: float) -> None:
    optimizer, config = Constant({"x": 0.25}), {"x": 0.25}
    study = Study(SPACE, optimizer, direction=direction, max_budget=4)
    first, second, third = started(study), started(study), started(study)
    study.tell(second, 0.5)
    study.report(first, 1, 0.9)
    study.fail(first)
    study.tell(third, math.nan)
    started(study)
    observed = [
        Observation(1, config, 4, loss),
        Observation(0, config, 1, math.inf),
        Observation(2, config, 4, math.inf),
    ]
    assert optimizer.seen == [(0, [], {}), (1, [], {0: config}), (2, [], {0: config, 1: config}), (3, observed, {})]


@pytest.mark.parametrize("last", ["tell", "stop", "fail"])
def test_the_history_has_the_newest_result(last: str) -> None:
    """So all trials of a study that is over can be the earlier ones of another."""
    study = Study(SPACE, Patience(patience=1), direction="min", max_budget=3, n_trials=2)
    study.tell(started(study), 0.5)
    trial = started(study)
    if last == "tell":
        study.tell(trial, 0.25)
    elif last == "stop":
        study.report(trial, 1, 0.25)
        assert study.report(trial, 2, 0.25) is Decision.STOP
    else:
        study.fail(trial)
    losses = [observation.loss for observation in study.history.observations]
    assert losses == [0.5, math.inf if last == "fail" else 0.25]
    assert study.history.pending == {}


def test_a_promotion_is_pending_again_and_a_lost_attempt_still_is() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=2), max_budget=2)
    first, second = started(study), started(study)
    study.tell(first, 0.5)
    study.apply(AttemptEnded(1, 1, TrialState.PENDING, 0.0, failure=Failure(FailureKind.SIGNAL, "killed")))
    study.apply(AttemptStarted(1, 2, 0, 1, 0.0))
    assert list(study.history.pending) == [1]
    study.tell(second, 0.1)
    assert study.ask() is first
    config = [trial.config for trial in study.trials]
    assert study.history.observations == [
        Observation(0, config[0], 1, -0.5, paused=True),
        Observation(1, config[1], 1, -0.1, paused=True),
    ]
    assert study.take_updates() == (Pending(0, config[0]),)
    assert study.take_updates() == ()


# -- ends of attempts -------------------------------------------------------------------------------
def test_a_value_returned_early_is_compared_at_the_end_of_the_grant_and_is_no_point_of_the_curve() -> None:
    study = Study(SPACE, ASHA(sampler="random", min_budget=9), max_budget=27)
    trial, other = started(study), started(study)
    study.report(trial, 2, 0.3)
    study.tell(trial, 0.7)
    study.tell(other, 0.6)
    assert (trial.curve.steps.tolist(), trial.curve.values.tolist()) == ([2], [0.3])
    assert (trial.value, trial.value_step, trial.last_value, trial.step) == (0.3, 2, 0.7, 9)
    seen = study.history.observations
    assert [(each.step, each.loss, each.paused) for each in seen] == [(9, -0.7, True), (9, -0.6, True)]
    assert study.closing_promotion() is trial


def test_the_first_word_on_a_step_stands() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9)
    trial = started(study)
    for step, value in ((1, 0.1), (2, 0.2), (2, 0.9), (1, 0.9), (3, 0.3)):
        study.report(trial, step, value)
    assert (trial.curve.steps.tolist(), trial.curve.values.tolist()) == ([1, 2, 3], [0.1, 0.2, 0.3])


def test_a_driver_s_end_is_no_loss_of_the_trial_and_seconds_add_up() -> None:
    study = Study(SPACE, RandomSearch())
    trial = started(study)
    for attempt, kind in enumerate((FailureKind.WORKER_LOST, FailureKind.DRIVER_LOST, FailureKind.SIGNAL), start=2):
        study.apply(AttemptEnded(0, attempt - 1, TrialState.PENDING, 5.0, failure=Failure(kind, "")))
        study.apply(AttemptStarted(0, attempt, 0, 1, 4.0))
    assert (trial.losses, trial.attempt) == (2, 4)
    assert trial.seconds == 5.0 + 1.0 + 1.0
    study.apply(AttemptEnded(0, 4, TrialState.COMPLETED, 3.0, 0.5))  # a clock that ran backwards
    assert trial.seconds == 7.0
    assert trial.failure is None


def test_the_optimizer_is_told_how_long_a_trial_ran_but_not_where_an_attempt_was_lost() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=2), max_budget=2)
    first, second = started(study), started(study)
    study.apply(AttemptEnded(0, 1, TrialState.PAUSED, 5.0, 0.5))
    study.apply(AttemptStarted(0, 2, 0, 2, 20.0))
    study.apply(AttemptEnded(0, 2, TrialState.COMPLETED, 22.0, 0.7))
    study.apply(AttemptEnded(1, 1, TrialState.PENDING, 1e6, failure=Failure(FailureKind.DRIVER_LOST, "")))
    study.apply(AttemptStarted(1, 2, 0, 1, 1e6))
    study.apply(AttemptEnded(1, 2, TrialState.PAUSED, 1e6 + 1.0, 0.5))
    told = [seen for seen in study.take_updates() if isinstance(seen, Observation)]
    assert [(seen.trial, seen.seconds) for seen in told] == [(0, 5.0), (0, 7.0), (1, 0.0)]
    assert (first.seconds, second.seconds) == (7.0, 1e6 + 1.0)


# -- events and replay ------------------------------------------------------------------------------
def seen_from_outside(study: Study) -> str:
    """All that a study says of itself, as text: NaN equals nothing, not even itself."""
    best, promotion = study.best, study.next_promotion()
    return repr(
        (
            study.trials,
            sorted(study.counts.elements()),
            study.n_asks,
            best and best.id,
            promotion and promotion.id,
            [study.grant(trial) for trial in study.trials],
        )
    )


class Recorded(Study):
    """Keeps the events, and what the study said after each; checks what must always hold."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events: list[bytes] = []
        self.said: list[tuple[Decision, str]] = []
        self.rule = options["value"]
        self.least = math.inf

    def apply(self, event: Event) -> Decision:
        self.events.append(to_json(event))
        decision = super().apply(event)
        assert self.counts == Counter(trial.state for trial in self.trials)
        self.check_best()
        self.said.append((decision, seen_from_outside(self)))
        return decision

    def check_best(self) -> None:
        """The best is the best of what trials are worth, which with ``best`` never gets worse."""
        failed = TrialState.FAILED if self.rule == "last" else None
        finite = [entry for t in self.trials if t.state is not failed and math.isfinite((entry := self.entry(t))[0])]
        assert (self.best and self.best.id) == (min(finite)[1] if finite else None)
        if self.rule == "best":
            best = min(finite)[0] if finite else math.inf
            assert best <= self.least
            self.least = best
            for trial in self.trials:
                known = [value for value in trial.curve.values if math.isfinite(value)]
                assert not known or self.loss(trial.value) <= min(map(self.loss, known))
                assert trial.value_step is None or trial.value_step <= trial.step

    def entry(self, trial: Trial) -> tuple[float, int]:
        return self.loss(trial.value), trial.id


@settings(max_examples=examples(40))
@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    direction=st.sampled_from(["max", "min"]),
    rule=st.sampled_from(["best", "last"]),
    draw=st.randoms(use_true_random=False),
)
def test_replay_of_any_prefix_gives_the_same_study_whose_best_never_gets_worse(
    name: str, direction: Direction, rule: ValueRule, draw: random.Random
) -> None:
    options: dict[str, Any] = {"direction": direction, "value": rule, "seed": 3, "max_budget": 8, "n_trials": 8}
    live = Recorded(SPACE, OPTIMIZERS[name](), **options)
    wander(live, draw)
    replayed = Study(SPACE, OPTIMIZERS[name](), **options)
    for line, (decision, said) in zip(live.events, live.said, strict=True):
        assert replayed.apply(from_json(line)) is decision
        assert seen_from_outside(replayed) == said
    for study in (live, replayed):
        for update in study.take_updates():
            study.history.apply(update)
    assert repr(replayed.history) == repr(live.history)


def wander(study: Study, draw: random.Random) -> None:
    """Some life of a study: up to three trials beside each other, with all that can become of them."""
    running: list[Trial] = []
    for _ in range(40):
        if len(running) < 3 and (trial := study.ask()) is not None:
            running.append(trial)
        if not running:
            break
        trial = draw.choice(running)
        match draw.choice(["report", "report", "report", "tell", "tell", "fail", "lose", "save"]):
            case "report":
                step = draw.randint(max(1, trial.step), trial.budget + 1)
                study.report(trial, step, draw.choice([0.1, 0.2, 0.3, math.nan, math.inf]))
            case "tell":
                study.tell(trial, draw.choice([None, 0.15, 0.25, -math.inf]))
            case "fail":
                study.fail(trial)
            case "lose":
                failure = Failure(FailureKind.WORKER_LOST, "silent")
                study.apply(AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, 2.0, failure=failure))
                study.apply(AttemptStarted(trial.id, trial.attempt + 1, 1, study.grant(trial).budget, 1.0))
            case "save":
                study.apply(CheckpointSaved(trial.id, trial.attempt, trial.step, f"{trial.id:05d}/1-1.pkl"))
                assert trial.checkpoint == Checkpoint(trial.step, f"{trial.id:05d}/1-1.pkl")
        running = [trial for trial in running if trial.state is TrialState.RUNNING]


def test_numbers_of_numpy_are_plain_ones_in_the_study() -> None:
    study = Study({"x": Float(0, 1)}, RandomSearch(), direction="min", max_budget=3, n_trials=1)
    trial = study.ask()
    study.report(trial, np.int64(2), np.float32(0.5))  # type: ignore[arg-type]
    study.tell(trial, np.float64(0.25))
    assert [type(known) for known in (trial.value, trial.last_value, trial.reported)] == [float, float, int]


def test_the_values_of_several_objectives_may_be_an_array() -> None:
    study = Study(SPACE, RandomSearch(), direction=["max", "min"], objectives=["a", "b"])
    study.tell(started(study), np.array([0.5, 0.25]))  # type: ignore[arg-type]
    assert study.trials[0].values == (0.5, 0.25)
    with pytest.raises(UserError, match=r"value must have 2 numbers, one for each objective, got \[0.5, 0.25, 1\]"):
        study.tell(started(study), [0.5, 0.25, 1])


@pytest.mark.parametrize("returned", [None, 0.55])
def test_a_value_returned_early_hides_no_report_of_a_later_attempt(returned: float | None) -> None:
    study = Study(SPACE, ASHA(sampler="random", min_budget=3), direction="max", n_trials=3, max_budget=9)
    for value in (0.5, 0.1, 0.2):
        trial = study.ask()
        assert trial is not None
        study.report(trial, 1, value)
        study.tell(trial, returned and value + returned)  # as of a function that stops early
    assert study.trials[0].columns() == {"value": ([1], [0.5])}
    promoted = study.ask()
    for step in (2, 3, 4):
        study.report(promoted, step, 0.5 + step / 100)
    assert promoted.columns() == {"value": ([1, 2, 3, 4], [0.5, 0.52, 0.53, 0.54])}
    assert (promoted.value, promoted.value_step) == (0.54, 4)


def test_what_was_returned_is_the_curve_of_a_function_that_reports_nothing() -> None:
    study = Study(SPACE, ASHA(sampler="random", min_budget=3, eta=2), direction="max", n_trials=2, max_budget=6)
    for value in (0.5, 0.1):
        study.tell(started(study), value)
    assert study.trials[0].columns() == {"value": ([3], [0.5])}
    promoted = started(study)
    study.report(promoted, 2, 0.6)  # which it does now
    assert promoted.columns() == {"value": ([2], [0.6])}
    study.tell(promoted, 0.7)
    assert promoted.columns() == {"value": ([2], [0.6])}


def test_more_points_than_trials_are_an_error_and_a_replayed_study_tries_those_that_are_left() -> None:
    points = [{"x": x} for x in (0.1, 0.2, 0.3)]
    space = {"x": Float(0, 1)}
    with pytest.raises(UserError, match="n_trials must be at least 3 to try all points, got 2; use n_trials=3"):
        Study(space, RandomSearch(), n_trials=2, points=points)
    study = Study(space, RandomSearch(), n_trials=6, points=points)
    for event in (TrialCreated(0, points[0]), TrialCreated(1, {"x": 0.9}, 0), TrialCreated(2, points[2])):
        study.apply(event)
    trial = study.ask()
    assert trial.config == points[1]
    assert study.points_left == []


# -- what a trial is worth --------------------------------------------------------------------------
def worth(trial: Trial) -> tuple[float | None, int | None, float | None]:
    return trial.value, trial.value_step, trial.last_value


def test_a_trial_is_worth_its_best_report() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9)
    first, second = started(study), started(study)
    study.report(first, 1, 0.5)
    study.report(second, 1, 0.4)
    study.report(first, 2, 0.3)
    assert study.best is first
    assert worth(first) == (0.5, 1, 0.3)
    study.report(second, 3, 0.6)
    assert study.best is second
    study.tell(second, 0.2)
    assert worth(second) == (0.6, 3, 0.2)
    assert study.best is second


@pytest.mark.parametrize(("rule", "rested", "best"), [("best", (0.9, 1, 0.05), 2), ("last", (0.05, 2, 0.05), 1)])
def test_a_promoted_trial_keeps_its_rank_until_it_rests(
    rule: ValueRule, rested: tuple[float, int, float], best: int
) -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=3), value=rule, max_budget=3, n_trials=3)
    for value in (0.1, 0.2, 0.9):
        trial = started(study)
        study.report(trial, 1, value)
        study.tell(trial)
    promoted = started(study)
    study.report(promoted, 2, 0.05)
    assert worth(promoted) == (0.9, 1, 0.05)
    assert study.best is promoted
    study.tell(promoted)
    assert worth(promoted) == rested
    assert study.best is study.trials[best]


@pytest.mark.parametrize("rule", ["best", "last"])
def test_a_returned_value_counts_only_where_nothing_was_reported(rule: ValueRule) -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9, value=rule)
    better, worse, alone = started(study), started(study), started(study)
    for trial in (better, worse):
        study.report(trial, 2, 0.3)
    study.tell(better, 0.7)
    study.tell(worse, 0.2)
    study.tell(alone, 0.6)
    assert [worth(trial) for trial in study.trials] == [(0.3, 2, 0.7), (0.3, 2, 0.2), (0.6, None, 0.6)]
    assert [trial.reported for trial in study.trials] == [2, 2, None]


class Life:
    """Trials of a function that saves, restores, and may stop early, whose attempts may be lost.

    The value at a step is that of the trial, whichever attempt measures it.
    """

    def __init__(self, study: Study, draw: random.Random) -> None:
        self.study = study
        self.draw = draw
        self.first = draw.choice([0, 1])  # how it counts its epochs
        self.save_every = draw.choice([1, 2, 3])
        self.returns = draw.choice(["nothing", "best", "last", "test score"])
        self.events: list[Event] = []
        self.reported: dict[int, dict[int, float]] = {}
        self.saved: dict[int, set[int]] = {}

    def apply(self, event: Event) -> None:
        self.events.append(event)
        self.study.apply(event)

    def run(self, trial: Trial) -> None:
        """Run an attempt, and others while one is lost."""
        curve = random.Random(trial.id)
        values = [curve.choice([0.1, 0.2, 0.3, 0.4]) + trial.id / 100 for _ in range(20)]
        reported, saved = self.reported.setdefault(trial.id, {}), self.saved.setdefault(trial.id, set())
        step = self.first - 1 if trial.checkpoint is None else trial.checkpoint.step
        best = max(values[self.first : step + 1], default=0.0)
        while step + 1 < self.first + trial.budget:
            step += 1
            best = max(best, values[step])
            reported[step] = values[step]
            self.apply(Measured(trial.id, trial.attempt, "value", {"value": ([step], [values[step]])}))
            if step % self.save_every == 0:
                self.apply(CheckpointSaved(trial.id, trial.attempt, step, f"{trial.attempt}-{step}"))
                saved.add(step)
            check_that_all_belongs_together(self, trial)
            match self.draw.choice(["go on"] * 6 + ["stop", "lose"]):
                case "stop":
                    break
                case "lose":
                    failure = Failure(FailureKind.WORKER_LOST, "silent")
                    self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, 0.0, failure=failure))
                    check_that_all_belongs_together(self, trial)
                    self.apply(self.study.started(trial, 0, 0.0))
                    return self.run(trial)
        returned = {"nothing": None, "best": best, "last": values[step], "test score": self.draw.choice([0.0, 0.9])}
        for event in self.study.conclude(trial, returned[self.returns], {}, 0.0):
            self.apply(event)
        check_that_all_belongs_together(self, trial)
        return None


def check_that_all_belongs_together(life: Life, trial: Trial) -> None:
    reported, rule = life.reported[trial.id], life.study.value_rule
    assert trial.columns() == {"value": (sorted(reported), [reported[step] for step in sorted(reported)])}
    assert trial.value_step is not None
    assert trial.value == trial.curve.at(trial.value_step)
    if rule == "best":
        assert trial.value == max(reported.values())
    elif trial.state is not TrialState.RUNNING and trial.state is not TrialState.PENDING:
        assert trial.value_step == max(reported)
    state = trial.saved(newest=rule == "last")
    if trial.value_step in life.saved[trial.id]:
        assert state.step == trial.value_step
    elif rule == "best" and state is not None:
        assert trial.curve.at(state.step) == max(trial.curve.at(step) or 0.0 for step in life.saved[trial.id])


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    rule=st.sampled_from(["best", "last"]),
    mode=st.sampled_from(["promotion", "stopping"]),
    draw=st.randoms(use_true_random=False),
)
def test_curve_value_step_and_state_belong_together(rule: ValueRule, mode: Mode, draw: random.Random) -> None:
    """Through promotions, early returns, lost attempts and a resume."""

    def study() -> Study:
        asha = ASHA(sampler="random", eta=2, mode=mode)
        return Study(SPACE, asha, direction="max", value=rule, seed=1, max_budget=8, n_trials=8)

    life = Life(study(), draw)
    for _ in range(20):
        known = len(life.study.trials)
        if (trial := life.study.ask()) is None:
            break
        if len(life.study.trials) > known:
            life.events.append(TrialCreated(trial.id, trial.config, trial.ask, trial.parent))
        life.events.append(AttemptStarted(trial.id, trial.attempt, 0, trial.budget, 0.0))
        life.run(trial)
        if draw.random() < 0.2:
            life.study = study()
            for event in life.events:
                life.study.apply(from_json(to_json(event)))
    finite = [trial for trial in life.study.trials if trial.value is not None]
    assert life.study.best is min(finite, key=lambda trial: (life.study.loss(trial.value), trial.id))
    for trial in life.study.trials:
        check_that_all_belongs_together(life, trial)


def test_the_state_of_the_best_returned_value_stands_for_a_trial_that_reports_nothing() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=2), max_budget=4, n_trials=2)
    values = {1: 0.5, 2: 0.9, 4: 0.7}
    while (trial := study.ask()) is not None:
        study.apply(CheckpointSaved(trial.id, trial.attempt, 0, f"of {trial.budget}"))
        study.tell(trial, values[trial.budget] - trial.id)
    best = study.best
    assert (best.value, best.value_step, best.last_value) == (0.9, None, 0.7)
    assert [state and state.name for state in (best.best_checkpoint, best.checkpoint)] == ["of 2", "of 4"]


@pytest.mark.parametrize(("rule", "bests"), [("best", [0, 0]), ("last", [1, None])])
def test_what_a_failed_trial_has_reported_counts_if_the_best_report_does(rule: ValueRule, bests: list[int]) -> None:
    """Else the best would get worse when a running trial that is the best fails."""
    study = Study(SPACE, RandomSearch(), value=rule, max_budget=9)
    trials, seen = [started(study), started(study)], []
    for trial, value in zip(trials, (0.9, 0.1), strict=True):
        study.report(trial, 1, value)
    for trial in trials:
        study.fail(trial, "boom")
        seen.append(study.best and study.best.id)
    assert seen == bests
    losses = [observation.loss for observation in study.history.observations]
    assert losses == [math.inf, math.inf]  # but nobody proposes more like them


def test_a_trial_that_failed_without_a_report_is_never_the_best() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9)
    study.fail(started(study), "boom")
    assert study.best is None


@pytest.mark.parametrize("rule", ["best", "last"])
@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_never_the_best(direction: Direction, value: float, rule: ValueRule) -> None:
    study = Study(SPACE, RandomSearch(), direction=direction, value=rule, max_budget=9)
    diverged = started(study)
    study.report(diverged, 1, value)
    bests = [study.best]
    study.report(diverged, 2, 0.5)
    bests.append(study.best)
    study.report(diverged, 3, value)
    bests.append(study.best)
    study.tell(diverged)
    other = started(study)
    study.tell(other, 0.5)
    assert bests == [None, diverged, diverged if rule == "best" else None]
    assert study.best is (diverged if rule == "best" else other)
    assert diverged.value_step == (2 if rule == "best" else 3)


def test_what_the_optimizer_is_told_of_a_trial_that_ended_is_what_it_is_worth() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=3, n_trials=3)
    trial = started(study)
    for step, value in ((1, 0.9), (2, 0.3), (3, 0.4)):
        study.report(trial, step, value)
    study.tell(trial)
    assert [(seen.step, seen.loss, seen.ended) for seen in study.history.observations] == [(3, -0.9, True)]
    paused = Study(SPACE, ASHA(sampler="random", eta=3, min_budget=3), max_budget=9, n_trials=3)
    trial = started(paused)
    for step, value in ((1, 0.9), (2, 0.3), (3, 0.4)):
        paused.report(trial, step, value)
    paused.tell(trial)
    [seen] = paused.history.observations
    assert (seen.step, seen.loss, seen.paused) == (3, -0.4, True)  # as the rung compares it


# -- with value="last" -----------------------------------------------------------------------------
def test_a_trial_that_runs_for_the_first_time_is_worth_its_newest_report() -> None:
    study = Study(SPACE, RandomSearch(), value="last", max_budget=9)
    first, second = started(study), started(study)
    study.report(first, 1, 0.5)
    study.report(second, 1, 0.4)
    assert study.best is first
    study.report(first, 2, 0.3)
    assert study.best is second
    assert worth(first) == (0.3, 2, 0.3)


@pytest.mark.parametrize("rule", ["best", "last"])
def test_the_best_is_right_after_any_number_of_reports(rule: ValueRule) -> None:
    study = Study(SPACE, RandomSearch(), value=rule, max_budget=1000)
    trials = [started(study) for _ in range(3)]
    draw = random.Random(0)
    for step in range(1, 200):
        for trial in trials:
            study.report(trial, step, draw.random())
            ranked = [(-other.value, other.id) for other in trials if other.value is not None]
            assert study.best is trials[min(ranked)[1]]


def test_a_trial_is_shown_by_its_state_its_value_and_its_configuration() -> None:
    trial = Trial(7, {"lr": 0.5}, TrialState.STOPPED)
    assert repr(trial) == "Trial(7, stopped, config={'lr': 0.5})"
    trial.value = 0.123456789
    assert repr(trial) == "Trial(7, stopped, value=0.12346, config={'lr': 0.5})"
    trial.objective, trial.value_step = "loss", 3
    assert repr(trial) == "Trial(7, stopped, loss=0.12346 at step 3, config={'lr': 0.5})"
