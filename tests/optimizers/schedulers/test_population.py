from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.driver.simulate import simulate
from optimizers.core.base import WAIT, History, Observation, Pending, Problem, Proposal
from optimizers.core.events import CheckpointSaved
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.population import PBT, Population
from optimizers.schedulers.stopping import Threshold
from optimizers.space import Config
from optimizers.space.domains import Choice, Float, Integer
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES

LINE = SearchSpace(x=Float(0, 1))


def rest(trial: int, step: int, loss: float) -> Observation:
    return Observation(trial, {"x": 0.5}, step, loss, paused=True)


def population(*rests: Observation, size: int = 4, quantile: float = 0.25) -> Population:
    population = Population(size, quantile, max_budget=100)
    for observation in rests:
        population.observe(observation)
    return population


# -- who is given up --------------------------------------------------------------------------------
def test_the_worst_of_four_is_given_up() -> None:
    seen = population(rest(0, 10, 3.0), rest(1, 10, 1.0), rest(2, 10, 2.0), rest(3, 10, 4.0))
    assert seen.given_up == [3]
    assert [place.trial for place in seen.best()] == [1]


def test_no_trial_is_given_up_before_there_is_another_to_compare_with() -> None:
    assert population(rest(0, 10, 9.0), rest(1, 10, 1.0), rest(2, 10, 1.0)).given_up == []


def test_equal_results_push_no_trial_out() -> None:
    assert population(*(rest(trial, 10, 1.0) for trial in range(4))).given_up == []


def test_a_slow_member_is_compared_with_what_the_others_had_at_its_step() -> None:
    ahead = [rest(trial, step, 10.0 / step + trial) for step in (10, 20, 30) for trial in range(3)]
    assert population(*ahead, rest(3, 10, 2.5)).given_up == []  # better than trial 2 was at step 10
    assert population(*ahead, rest(3, 10, 3.5)).given_up == [3]


@pytest.mark.parametrize(
    "end",
    [
        Observation(1, {"x": 0.5}, 3, math.inf),  # failed
        Observation(1, {"x": 0.5}, 12, 0.1),  # stopped by a rule
        rest(1, 10, math.inf),  # diverged
    ],
)
def test_a_trial_without_a_usable_result_is_given_up_at_once(end: Observation) -> None:
    assert population(rest(0, 10, 1.0), end).given_up == [1]


def test_a_completed_training_stays_but_has_no_children() -> None:
    done = Observation(0, {"x": 0.5}, 100, 0.1)
    seen = population(done, rest(1, 50, 0.5), rest(2, 50, 0.4))
    assert seen.given_up == []
    assert [place.trial for place in seen.best()] == [2]


def test_a_trial_that_takes_a_place_takes_over_its_results() -> None:
    """So the others are still judged by four results at the step at which one was given up."""
    seen = population(rest(0, 10, 1.0), rest(1, 10, 2.0), rest(2, 10, 3.0), rest(3, 10, 4.0))
    seen.observe(rest(4, 20, 0.5))  # trial 3's successor, which started from trial 0's state
    assert seen.places[4] is seen.places[3]
    seen.observe(rest(2, 15, 4.5))
    assert seen.given_up == [3, 2]
    assert [place.trial for place in seen.best()] == [4]


# -- proposals --------------------------------------------------------------------------------------
def history_of(space: SearchSpace, observations: list[Observation], pending: dict[int, Config]) -> History:
    history = History(Problem(space, 0, 100))
    for trial, config in pending.items():
        history.apply(Pending(trial, config))
    for observation in observations:
        history.apply(observation)
    return history


def test_a_full_population_waits_until_somebody_is_given_up() -> None:
    optimizer = PBT(population=4)
    rests = [rest(trial, 10, float(trial)) for trial in range(3)]
    history = history_of(LINE, rests, {3: {"x": 0.1}})
    assert optimizer.ask(4, history) is WAIT
    history.apply(rest(3, 10, 5.0))
    answer = optimizer.ask(4, history)
    assert isinstance(answer, Proposal)
    assert answer.parent == 0
    history.apply(Pending(4, answer.config))
    assert optimizer.ask(5, history) is WAIT


def test_a_place_without_any_good_parent_is_filled_from_scratch() -> None:
    history = history_of(LINE, [rest(trial, 10, math.inf) for trial in range(4)], {})
    assert isinstance(PBT(population=4).ask(4, history), dict)


@settings(max_examples=examples(30))
@given(st.sampled_from(sorted(SPACES)), st.integers(0, 100))
def test_a_child_stays_near_its_parent_in_any_space(name: str, index: int) -> None:
    space = SPACES[name]
    history = History(Problem(space, 0, 100))
    configs = [space.sample(history.rng(trial)) for trial in range(4)]
    for trial, config in enumerate(configs):
        history.apply(Observation(trial, config, 10, float(trial), paused=True))
    answer = PBT(population=4, perturbation=1e-3, resample_probability=0.0).ask(4 + index, history)
    assert isinstance(answer, Proposal)
    child, parent = answer.config, configs[0]
    assert space.validate(child) == child
    assert child.keys() == parent.keys()
    assert space.to_unit(child) == pytest.approx(space.to_unit(parent), abs=0.01)


def test_a_choice_that_is_drawn_anew_brings_its_own_parameters() -> None:
    space = SearchSpace(opt=Choice(["sgd", "adam"]), beta=Float(0.0, 1.0, when={"opt": "adam"}))
    history = History(Problem(space, 0, 100))
    for trial in range(4):
        history.apply(Observation(trial, {"opt": "sgd"}, 10, float(trial), paused=True))
    answers = [PBT(population=4, resample_probability=1.0).ask(index, history) for index in range(40)]
    children = [answer.config for answer in answers if isinstance(answer, Proposal)]
    betas = [child["beta"] for child in children if child["opt"] == "adam"]
    assert 10 <= len(betas) <= 30
    assert min(betas) < 0.2 < 0.8 < max(betas)


# -- whole searches ---------------------------------------------------------------------------------
def noisy_quadratic(config: Config, step: int, loss: float) -> tuple[float, float, float]:
    """The expected loss of SGD with noisy gradients: a large rate forgets the start, a small one averages the noise.

    So no constant rate is as good as one that falls. Best constant rate after 100 steps: 0.029.
    """
    rate = config["rate"]
    loss = (1.0 - rate) ** 2 * loss + rate**2
    return loss, 1.0, loss


RATES = {"rate": Float(1e-3, 1.0, log=True)}


def searched(optimizer: Any, seed: int, n_trials: int, workers: int) -> tuple[Study, float]:
    study = Study(RATES, optimizer, direction="min", value="last", seed=seed, max_budget=100, n_trials=n_trials)
    return study, simulate(study, noisy_quadratic, workers=workers, state=100.0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_schedule_is_found_that_no_constant_reaches(workers: int) -> None:
    """On as many steps as random search has for eight trainings, with fewer workers than members too."""
    bests, randoms = [], []
    for seed in range(5):
        study, seconds = searched(PBT(population=8, interval=5), seed, 200, workers)
        assert seconds * workers <= 8 * 100 + 100
        bests.append(study.best.value)
        random, _ = searched(RandomSearch(), seed, 8, workers)
        randoms.append(random.best.value)
    constant = min(searched_rate(10 ** (-3 + n / 50)) for n in range(151))
    assert fmean(bests) < constant < fmean(randoms)
    assert fmean(bests) < fmean(randoms) / 3


def searched_rate(rate: float) -> float:
    loss = 100.0
    for step in range(100):
        loss, _, _ = noisy_quadratic({"rate": rate}, step, loss)
    return loss


def test_the_same_seed_gives_the_same_search() -> None:
    runs = [searched(PBT(population=4), seed, 60, 3)[0] for seed in (1, 1, 2)]
    said = [[(trial.config, trial.parent, trial.value) for trial in run.trials] for run in runs]
    assert said[0] == said[1] != said[2]


def test_children_count_their_parents_steps_and_all_members_reach_the_end() -> None:
    study, _ = searched(PBT(population=4, interval=30), 0, 60, 4)
    completed = [trial for trial in study.trials if trial.state is TrialState.COMPLETED]
    assert len(completed) == 4
    children = [trial for trial in study.trials if trial.parent is not None]
    assert children
    for child in children:
        first = child.curve.steps[0] - 1
        assert first in (30, 60, 90)
        assert first in study.trials[child.parent or 0].curve.steps
    assert {trial.budget for trial in study.trials} <= {30, 60, 90, 100}


def test_with_no_trials_left_places_stay_empty() -> None:
    study, _ = searched(PBT(population=8, interval=5), 0, 10, 4)
    assert len(study.trials) == 10
    assert study.counts[TrialState.COMPLETED] >= 5
    assert study.counts[TrialState.PAUSED] >= 3


@pytest.mark.parametrize("name", ["mixed", "conditional", "single", "tiny"])
def test_failures_and_divergence_are_replaced(name: str) -> None:
    def train(config: Config, step: int) -> tuple[float, float]:
        unlucky = len(repr(config)) % 3 == 0
        return (math.nan if unlucky and step > 7 else 1.0 / step), 1.0

    study = Study(SPACES[name], PBT(population=4, interval=5), direction="min", max_budget=20, n_trials=30)
    simulate(study, train, workers=3)
    assert study.counts[TrialState.COMPLETED] + study.counts[TrialState.PAUSED] == len(study.trials) <= 30
    diverged = [trial for trial in study.trials if trial.last_value is not None and math.isnan(trial.last_value)]
    assert all(trial.budget == 10 or trial.parent is not None for trial in diverged)


def test_a_rule_that_stops_a_member_makes_room_for_another() -> None:
    rule = Threshold(PBT(population=4, interval=30), step=5, worse_than=20.0, direction="min")
    study, _ = searched(rule, 0, 40, 4)
    stopped = [trial for trial in study.trials if trial.state is TrialState.STOPPED]
    assert stopped
    assert study.counts[TrialState.COMPLETED] == 4
    assert rule.needs_checkpoints


def test_ask_and_tell_alone() -> None:
    study = Study(LINE, PBT(population=4, interval=2), direction="max", max_budget=6, n_trials=12)
    while (trial := study.ask()) is not None:
        study.tell(trial, trial.config["x"] * trial.budget)
    assert study.counts[TrialState.COMPLETED] >= 3
    assert any(trial.parent is not None for trial in study.trials)


def train(study: Study, every: int) -> None:
    """Run a study whose function saves and reports every few steps, whatever the interval."""
    while (trial := study.ask()) is not None:
        if (step := trial.step + every) <= study.problem.max_budget:
            study.report(trial, step, trial.config["x"] * step)
            study.apply(CheckpointSaved(trial.id, trial.attempt, step, "state"))
        study.tell(trial)


def test_a_member_that_reports_less_often_than_the_interval_is_as_far_as_its_reports() -> None:
    study = Study(LINE, PBT(population=4, interval=2), direction="max", max_budget=20, n_trials=16)
    train(study, every=5)
    assert max(trial.start for trial in study.trials) == 15  # no child starts at the end
    assert all(trial.attempt == (trial.step - trial.start) / 5 for trial in study.trials)  # no attempt without a report
    assert all((trial.step == 20) == (trial.state is TrialState.COMPLETED) for trial in study.trials)
    assert study.counts[TrialState.COMPLETED] >= 4


def test_a_child_with_nothing_to_report_fails_with_the_step_where_it_began() -> None:
    study = Study(LINE, PBT(population=4, interval=2), direction="max", max_budget=22, n_trials=16)
    train(study, every=5)
    failed = [trial for trial in study.trials if trial.state is TrialState.FAILED]
    assert failed
    for trial in failed:
        assert f"it began at step 20, where trial {trial.parent} had paused: report the last step" in str(trial.failure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_budget": 5}, "interval must be below max_budget=5, got 5; use a smaller one"),
        ({"max_budget": 50, "n_trials": 16}, "population must be below n_trials=16, got 16"),
    ],
)
def test_searches_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        PBT(population=16, interval=5).validate(Problem(LINE, 0, **options))


def test_integers_move_too() -> None:
    space = SearchSpace(units=Integer(1, 6))
    history = History(Problem(space, 0, 100))
    for trial in range(4):
        history.apply(Observation(trial, {"units": 3}, 10, float(trial), paused=True))
    answers = [PBT(population=4).ask(index, history) for index in range(40)]
    moved = {answer.config["units"] for answer in answers if isinstance(answer, Proposal)}
    assert {2, 3, 4} <= moved


# -- defaults ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n_trials", "quantile", "size"),
    [(None, 0.25, 16), (100, 0.25, 16), (20, 0.25, 10), (8, 0.25, 4), (5, 0.25, 4), (3, 0.25, 3), (1, 0.25, 1),
     (9, 0.2, 5), (100, 0.05, 20)],
)  # fmt: skip
def test_the_default_population_fits_the_number_of_trials(n_trials: int | None, quantile: float, size: int) -> None:
    study = Study(LINE, PBT(quantile=quantile), direction="min", max_budget=9, n_trials=n_trials)
    started = [study.ask() for _ in range(size)]
    assert len({trial.id for trial in started if trial is not None}) == size
    assert study.ask() is None  # no place is free until a member pauses


def test_the_default_population_is_that_of_the_beginning_of_a_resumed_search() -> None:
    history = History(Problem(LINE, 0, 9, n_trials=24, began_with=10))
    for trial in range(5):
        assert isinstance(PBT().ask(trial, history), dict)
        history.apply(Pending(trial, {"x": 0.5}))
    assert PBT().ask(5, history) is WAIT


@pytest.mark.parametrize("max_budget", [2, 9])
def test_a_short_search_with_the_defaults_trains_to_the_end(max_budget: int) -> None:
    study = Study(LINE, PBT(), direction="min", max_budget=max_budget, n_trials=8, seed=1)
    while (trial := study.ask()) is not None:
        study.report(trial, trial.budget, trial.config["x"])
        study.tell(trial)
    assert len(study.trials) == (8 if max_budget == 9 else 4)  # few pauses replace nobody
    assert any(trial.state is TrialState.COMPLETED for trial in study.trials)
    assert all(trial.step == max_budget for trial in study.trials if trial.state is TrialState.COMPLETED)
