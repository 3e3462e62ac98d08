from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import Decision, History, Optimizer, Problem, Scheduler
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import RandomSearch, Sobol
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

CONTINUE, STOP = Decision.CONTINUE, Decision.STOP
PROBLEM = Problem(SearchSpace(x=Float(0, 1)), seed=3, max_budget=100)


def watch(optimizer: Optimizer) -> Scheduler:
    return optimizer.scheduler(PROBLEM)


def feed(scheduler: Scheduler, trial: int, losses: dict[int, float]) -> list[Decision]:
    return [scheduler.report(trial, step, loss) for step, loss in losses.items()]


def test_median_stops_the_worse_half_after_the_grace() -> None:
    scheduler = watch(MedianRule(grace=1, min_trials=3))
    for trial, loss in enumerate([0.9, 1.0, 1.1]):
        assert feed(scheduler, trial, {1: loss, 2: loss, 3: loss}) == [CONTINUE] * 3
    assert feed(scheduler, 3, {1: 2.0, 2: 2.0}) == [CONTINUE, STOP]
    assert feed(scheduler, 4, {1: 1.04, 2: 1.04}) == [CONTINUE, CONTINUE]  # the middle of four is 1.05


def test_median_compares_the_best_loss_with_running_averages() -> None:
    scheduler = watch(MedianRule(min_trials=3))
    for trial in range(3):
        feed(scheduler, trial, {1: 3.0, 2: 1.0})  # 2.0 on average
    assert feed(scheduler, 3, {1: 1.9, 2: 9.0}) == [CONTINUE, CONTINUE]
    assert feed(scheduler, 4, {1: 9.0, 2: 2.1}) == [CONTINUE, STOP]


def test_median_waits_for_enough_trials() -> None:
    scheduler = watch(MedianRule(grace=0, min_trials=2))
    assert feed(scheduler, 0, {1: 1.0}) == [CONTINUE]
    assert feed(scheduler, 1, {1: 5.0}) == [CONTINUE]
    assert feed(scheduler, 2, {1: 5.0}) == [STOP]


def test_median_compares_across_gaps_at_the_newest_step_since_the_last_report() -> None:
    scheduler = watch(MedianRule(min_trials=3))
    for trial in range(3):
        feed(scheduler, trial, {10: 1.0, 20: 0.5})
    assert feed(scheduler, 3, {9: 5.0, 10: 5.0}) == [CONTINUE, STOP]
    assert feed(scheduler, 4, {15: 5.0}) == [STOP]
    assert feed(scheduler, 5, {10: 0.5, 15: 0.7, 25: 0.7}) == [CONTINUE, CONTINUE, CONTINUE]
    assert feed(scheduler, 6, {11: 0.9, 19: 0.9, 25: 0.9}) == [CONTINUE, CONTINUE, STOP]


def test_median_ranks_what_is_not_finite_worst() -> None:
    scheduler = watch(MedianRule(min_trials=2))
    feed(scheduler, 0, {1: math.nan, 2: 1.0, 3: 1.0})
    feed(scheduler, 1, {1: 1.0, 2: 1.0, 3: 1.0})
    assert feed(scheduler, 2, {1: math.nan, 2: math.inf}) == [CONTINUE, STOP]
    assert feed(scheduler, 3, {1: 1.0, 2: -math.inf, 3: 2.0}) == [CONTINUE, CONTINUE, CONTINUE]


def naive_median_stops(seen: dict[int, dict[int, float]], trial: int, step: int, loss: float, min_trials: int) -> bool:
    """The rule as documented, by looking through all that was ever reported."""
    own = seen.get(trial, {})
    after = max(own, default=-1)
    for at in range(step, after, -1):
        others = [curve for other, curve in seen.items() if other != trial and at in curve]
        if len(others) >= min_trials:
            averages = []
            for curve in others:
                finite = [value for s, value in curve.items() if s <= at and math.isfinite(value)]
                averages.append(statistics.fmean(finite) if math.isfinite(curve[at]) else math.inf)
            return step > 1 and min([*own.values(), loss]) > statistics.median(averages) + 1e-12
    return False


@settings(max_examples=examples(60))
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_median_agrees_with_a_plain_reading_of_the_rule(seed: int, min_trials: int) -> None:
    draw = random.Random(seed)
    scheduler = watch(MedianRule(min_trials=min_trials))
    seen: dict[int, dict[int, float]] = {}
    for _ in range(60):
        trial = draw.randrange(6)
        step = max(seen.get(trial, {}), default=0) + draw.randint(1, 3)
        loss = draw.choice([draw.random(), draw.random() + 0.3, math.inf])
        expected = naive_median_stops(seen, trial, step, loss, min_trials)
        assert (scheduler.report(trial, step, loss) is STOP) == expected
        seen.setdefault(trial, {})[step] = loss


def test_patience_counts_reports_without_an_improvement() -> None:
    scheduler = watch(Patience(patience=2))
    assert feed(scheduler, 0, {1: 5.0, 2: 5.0, 5: 4.0, 6: 4.5, 9: 4.0}) == [CONTINUE] * 4 + [STOP]
    assert feed(scheduler, 1, {1: math.nan, 2: math.inf}) == [CONTINUE, STOP]


def test_patience_wants_at_least_min_delta() -> None:
    scheduler = watch(Patience(patience=1, min_delta=0.1))
    assert feed(scheduler, 0, {1: 1.0, 2: 0.8, 3: 0.75}) == [CONTINUE, CONTINUE, STOP]


@pytest.mark.parametrize(
    ("direction", "values", "expected"),
    [
        ("max", {2: 0.1, 3: 0.2, 4: 0.19}, [CONTINUE, CONTINUE, STOP]),
        ("min", {2: 0.9, 3: 0.2, 4: 0.21}, [CONTINUE, CONTINUE, STOP]),
        ("min", {2: math.nan, 3: math.nan}, [CONTINUE, STOP]),
    ],
)
def test_threshold_knows_the_worse_side(direction: Any, values: dict[int, float], expected: Any) -> None:
    rule = Threshold(step=3, worse_than=0.2, direction=direction)
    study = Study(PROBLEM.space, rule, direction=direction, max_budget=9)
    trial = study.ask()
    assert [study.report(trial, step, value) for step, value in values.items()] == expected
    assert trial.state is TrialState.STOPPED


def test_a_threshold_of_the_other_direction_is_refused_before_it_stops_the_good_trials() -> None:
    match = r"Threshold\(direction='min'\) contradicts the search, which has direction='max'"
    rule = Threshold(step=1, worse_than=0.2, direction="min")
    with pytest.raises(OptimizerError, match=match):
        Study(PROBLEM.space, rule, direction="max")
    study = Study(PROBLEM.space, rule)  # the first report settles it: a value without a name is maximized
    trial = study.ask()
    with pytest.raises(OptimizerError, match=match):
        study.report(trial, 1, 0.9)


def test_rules_stack_and_leave_the_inner_scheduler_its_say() -> None:
    study = Study(
        PROBLEM.space,
        Threshold(MedianRule(ASHA(sampler="random", eta=2)), step=2, worse_than=5.0, direction="min"),
        direction="min",
        max_budget=8,
        n_trials=16,
    )
    assert study.scheduler.may_promote
    assert study.scheduler.watches_reports
    draw = random.Random(0)
    while (trial := study.ask()) is not None:
        quality = draw.random() * 6
        for step in range(trial.step + 1, trial.budget + 1):
            if study.report(trial, step, quality) is STOP:
                break
        else:
            study.tell(trial)
    assert study.counts[TrialState.COMPLETED] >= 1
    assert study.counts[TrialState.PAUSED] >= 4
    assert study.counts[TrialState.STOPPED] >= 1


def test_an_inner_stop_stands() -> None:
    scheduler = watch(MedianRule(ASHA(sampler="random", eta=2, mode="stopping")))
    assert scheduler.report(0, 1, 1.0) is Decision.CONTINUE
    assert scheduler.report(1, 1, 2.0) is STOP  # neither the best so far nor in the better half
    assert scheduler.grant(1).milestones == (1, 3, 6, 12, 25, 50)


def test_a_rule_proposes_what_its_optimizer_does() -> None:
    history = History(PROBLEM)
    assert Patience(Sobol()).ask(5, history) == Sobol().ask(5, history)
    assert MedianRule().ask(5, history) == RandomSearch().ask(5, history)
    assert MedianRule("sobol").ask(5, history) == Sobol().ask(5, history)
    assert not Patience(ASHA(sampler="random")).adaptive
    with pytest.raises(OptimizerError, match="min_budget must be at most max_budget=100, got 200"):
        Patience(ASHA(sampler="random", min_budget=200)).validate(PROBLEM)
