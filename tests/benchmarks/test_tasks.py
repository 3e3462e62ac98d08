"""The tasks of the comparisons in virtual time, and what is counted on them."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from benchmarks.confirm import judge, race, simulated
from benchmarks.crowd import nearest
from benchmarks.crowd import run as crowded
from benchmarks.landscapes import NAMES, STEPS, Landscape, dense, landscape, sparse
from benchmarks.noise import NOISE, Noisy, run
from benchmarks.quality import HELD_OUT, MADE, QUICK, TUNED
from benchmarks.surrogate import table_of
from benchmarks.tables import CURVES
from benchmarks.tasks import LastStep, is_at_hand, task
from maggy_like import Float, SearchSpace

pytestmark = pytest.mark.slow

BEST = {
    "crossing": {"rate": 0.15, "decay": 0.3, "width": 0.7, "unused": 0.0},
    "late": {"a": 0.2, "b": 0.5, "c": 0.7, "d": 0.9},
    "overfitting": {"a": 0.35, "b": 0.6, "c": 0.5},
    "plateaus": {"a": 0.15, "b": 0.4, "c": 0.65, "d": 0.85},
    "bimodal": {"a": 0.4, "b": 0.7, "c": 0.2, "d": 0.5},
    "two": {"x": math.pi, "y": 2.275},
    "forty": {f"x{i}": value for i, value in enumerate(np.linspace(0.1, 0.9, 40).tolist())},
    "dear": {"size": 0.85, "a": 0.3, "b": 0.6, "c": 0.0},
    "cheap": {"size": 0.15, "a": 0.3, "b": 0.6, "c": 0.0},
}


def curves(made: Landscape, count: int = 200) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Losses and seconds of random configurations, shape (count, steps)."""
    rng = np.random.default_rng(3)
    configs = [made.space.sample(rng) for _ in range(count)]
    both = np.array([[made(config, step) for step in range(1, made.max_budget + 1)] for config in configs])
    return both[..., 0], both[..., 1]


def agreement(losses: np.ndarray[Any, Any], step: int) -> float:
    """Rank correlation of the losses after a step with those at the end."""
    return float(np.corrcoef(rankdata(losses[:, step - 1]), rankdata(losses[:, -1]))[0, 1])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_better_than_the_best_and_one_in_two_better_than_the_median(name: str) -> None:
    made = landscape(name)
    losses, seconds = curves(made)
    lowest = made.regret(np.min(losses, axis=1))
    assert made.max_budget == STEPS
    assert (lowest >= 0.0).all()
    assert 0.3 < np.mean(lowest < 1.0) < 0.7
    assert (seconds > 0.0).all()
    assert seconds.sum(axis=1).mean() == pytest.approx(made.full_seconds, rel=0.3)


@pytest.mark.parametrize("name", BEST)
def test_the_best_is_where_it_is_said_to_be(name: str) -> None:
    made = landscape(name)
    near = min(made(BEST[name], step)[0] for step in range(1, STEPS + 1))
    assert made.regret(near) == pytest.approx(0.0, abs=1e-3) or name == "bimodal"  # there it may be stuck, as any


def test_early_leaders_end_badly_where_curves_cross_and_nothing_shows_where_they_come_late() -> None:
    crossing, late = curves(landscape("crossing"))[0], curves(landscape("late"))[0]
    assert agreement(crossing, 1) < -0.3 < 0.5 < agreement(crossing, 16)
    assert abs(agreement(late, 16)) < 0.2


def test_trainings_diverge_beyond_the_edge_and_get_stuck_in_two_modes() -> None:
    edge, bimodal = curves(landscape("edge"))[0], curves(landscape("bimodal"))[0]
    assert 0.2 < np.mean(edge[:, -1] > 10.0) < 0.6
    assert np.isfinite(edge).all()
    assert 0.3 < np.mean(bimodal[:, 0] - bimodal[:, -1] < 0.1) < 0.5


def test_a_configuration_trains_alike_each_time_and_differs_from_its_neighbor() -> None:
    noisy = landscape("noisy")
    config = dict.fromkeys("abcde", 0.5)
    assert noisy(config, 7) == noisy(dict(config), 7)
    assert noisy(config, 7) != noisy({**config, "a": 0.501}, 7)


def test_medians_and_times_are_measured_where_they_are_not_known() -> None:
    space = SearchSpace(x=Float(0.0, 1.0))
    made = Landscape("made", space, lambda config, rng: (np.full(3, config["x"]), np.full(3, config["x"])), best=0.0)
    assert made.regret(0.5) == pytest.approx(1.0, abs=0.1)
    assert made.full_seconds == pytest.approx(1.5, abs=0.1)
    told = Landscape(
        "told", space, lambda config, rng: (np.ones(3), np.ones(3)), best=0.0, median=4.0, full_seconds=7.0
    )
    assert (told.regret(1.0), told.full_seconds) == (0.25, 7.0)


def test_tasks_are_in_one_part_alone_and_known(tmp_path: Path) -> None:
    for kind, shown in QUICK.items():
        everything = (*TUNED[kind], *HELD_OUT[kind], *MADE[kind])
        assert len(everything) == len(set(everything))
        assert set(shown) <= set(everything)
    assert is_at_hand("crossing", tmp_path)
    assert task("crossing", tmp_path) is landscape("crossing")
    assert not is_at_hand("yahpo-3945", tmp_path)
    assert not is_at_hand("lcbench-3945", tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None or not is_at_hand("yahpo-3945", CURVES),
    reason="needs onnxruntime and the surrogate's directory",
)
def test_the_surrogate_has_a_curve_for_every_configuration() -> None:
    found = task("yahpo-3945", CURVES)
    losses, seconds = curves(found, 50)  # type: ignore[arg-type]
    assert found.max_budget == 50
    assert agreement(losses, 16) > 0.8
    assert (found.regret(losses.min(axis=1)) >= 0.0).all()
    assert (seconds >= 0.0).all()
    config = found.space.sample(np.random.default_rng(0))
    moved = {**config, "learning_rate": config["learning_rate"] * 1.01}
    assert 0.0 < abs(found(config, 50)[0] - found(moved, 50)[0]) < 0.1


def test_a_whole_training_is_one_step() -> None:
    whole = task("dear", CURVES)
    config = whole.space.sample(np.random.default_rng(0))
    made = LastStep(whole)
    assert made(config, 1)[0] == whole(config, whole.max_budget)[0]
    assert made(config, 1)[1] == pytest.approx(sum(whole(config, step)[1] for step in range(1, whole.max_budget + 1)))
    assert made.regret(0.5) == whole.regret(0.5)


def test_every_configuration_gets_one_of_the_curves_that_were_drawn() -> None:
    smooth = landscape("two")
    ragged = table_of("ragged-two", smooth, rows=20)
    assert ragged.max_budget == smooth.max_budget
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(200):
        config = smooth.space.sample(rng)
        steps = [ragged(config, step) for step in range(1, ragged.max_budget + 1)]
        assert [seconds for _, seconds in steps] == pytest.approx([1.0] * ragged.max_budget)
        ends.append(steps[-1][0])
    assert 1 < len(set(ends)) <= 20
    known = {float(row[-1]) for row in ragged.losses}
    assert set(ends) <= known
    assert ragged.regret(min(known)) == 0.0


def test_what_is_drawn_depends_on_the_name_alone() -> None:
    smooth = landscape("two")
    ragged = table_of("ragged-two", smooth, rows=20)
    again = table_of("ragged-two", smooth, rows=20)
    np.testing.assert_array_equal(ragged.losses, again.losses)
    assert table_of("another", smooth, rows=20).losses[0, -1] != ragged.losses[0, -1]


# -- noise ------------------------------------------------------------------------------------------


def test_the_same_configuration_comes_out_differently_with_the_noise_that_is_said() -> None:
    inner = LastStep(landscape("two"))
    noisy = Noisy(inner, 0)
    config = {"x": 1.0, "y": 2.0}
    reported = [noisy(config, 1) for _ in range(400)]
    regret = inner.regret(inner(config, 1)[0])
    assert [loss for loss, _ in reported] == noisy.losses
    assert set(noisy.regrets) == {regret}
    assert np.mean(noisy.losses) == pytest.approx(regret, abs=0.05)
    assert np.std(noisy.losses) == pytest.approx(NOISE, rel=0.1)
    assert {seconds for _, seconds in reported} == {inner(config, 1)[1]}


def test_a_search_is_the_same_again_and_another_one_with_another_seed() -> None:
    first, again, other = (run("two", "random", seed, CURVES) for seed in (1, 1, 2))
    assert first == again != other
    assert min(first["best"], first["recommended"]) >= 0.0
    assert 0.5 < first["late"] < 2.0  # random configurations have a regret of about 1


def test_a_trial_has_the_same_noise_at_all_steps() -> None:
    inner = landscape("two")
    noisy = Noisy(inner, 0)
    configs = [{"x": 1.0, "y": 2.0}, {"x": 3.0, "y": 2.0}]
    luck = [[noisy(config, step)[0] - noisy.true(config, step) for config in configs] for step in (1, 2, 50)]
    assert luck[1] == pytest.approx(luck[0])
    assert luck[2] == pytest.approx(luck[0])
    assert luck[0][0] != luck[0][1]
    assert noisy.regrets == [noisy.true(config, 50) for config in configs]


# -- many workers and many parameters ---------------------------------------------------------------


def test_the_nearest_other_point_counts() -> None:
    assert nearest(np.array([[0.0], [0.1], [1.0]])) == pytest.approx((0.1 + 0.1 + 0.9) / 3)
    assert nearest(np.zeros((3, 2))) == 0.0


@pytest.mark.parametrize("made", [sparse(12), dense(12)], ids=lambda made: made.name)
def test_a_search_is_the_same_again_and_its_workers_try_different_things(made: Landscape) -> None:
    first, again = (crowded(made, "random", 0, workers=16, n_trials=32) for _ in range(2))
    for found in (first, again):
        assert found.pop("ask_s") > 0.0
        assert 0.0 < found.pop("busy") <= 1.0
    assert first == again
    assert 0.0 < first["regret"] < first["anytime"] < 3.0
    assert first["distance"] == pytest.approx(1.0, abs=0.2)


# -- confirmations ----------------------------------------------------------------------------------


def test_the_race_repeats_those_that_may_win() -> None:
    losses = race(lambda candidate, number: candidate + 0.1 * number, [0, 1, 2])
    assert sorted(losses) == [(0, number) for number in range(5)] + [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_search_is_judged_by_its_true_losses() -> None:
    seen = np.array([0.3, 0.0, 0.4, 0.5, 0.6, 0.7])
    true = np.array([0.1, 0.8, 0.4, 0.5, 0.6, 0.7])  # the second one was lucky
    rng = np.random.default_rng(0)
    found = judge(lambda candidate, number: float(true[candidate] + 0.01 * rng.normal()), seen, true)
    assert (found["regret"], found["regret_best"], found["coverage"], found["false"]) == (0.1, 0.8, 1.0, 0.0)
    assert found["extra"] == 13.0
    assert found["width"] == pytest.approx(0.015, rel=0.5)


def test_a_world_is_the_same_again() -> None:
    assert simulated("normal", 0.3, 0) == simulated("normal", 0.3, 0) != simulated("normal", 0.3, 1)
    assert simulated("equal", 0.3, 0)["regret_more"] == 0.0
