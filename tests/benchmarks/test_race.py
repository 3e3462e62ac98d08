"""The figures of the race, from runs that are written down here."""

from __future__ import annotations

import math

import pytest

from benchmarks.race import (
    Run,
    best_over_time,
    common_value,
    figures_of,
    improvements,
    median_best,
    read_marks,
    seconds_to,
)
from benchmarks.race_systems import SYSTEMS, System, lines_of

RISING = Run([(1.0, 0.5), (2.0, 0.4), (3.0, 0.8), (4.0, 0.9)], 7.0)
FALLING = Run([(1.0, 2.0), (2.0, math.nan), (3.0, 1.0)], 5.0)
EMPTY = Run([], 1.0)


def test_only_better_values_are_improvements() -> None:
    assert improvements(RISING, "max") == [(1.0, 0.5), (3.0, 0.8), (4.0, 0.9)]
    assert improvements(RISING, "min") == [(1.0, 0.5), (2.0, 0.4)]


def test_a_training_that_diverged_is_no_improvement() -> None:
    assert improvements(FALLING, "min") == [(1.0, 2.0), (3.0, 1.0)]
    assert improvements(Run([(1.0, math.nan), (2.0, 1.0)], 0.0), "min") == [(2.0, 1.0)]


def test_the_best_over_time_is_the_worst_possible_before_the_first_value() -> None:
    assert best_over_time(RISING, "max", [0.5, 1.0, 2.5, 3.0, 9.0]).tolist() == [-math.inf, 0.5, 0.5, 0.8, 0.9]
    assert best_over_time(FALLING, "min", [0.5, 2.9, 3.0]).tolist() == [math.inf, 2.0, 1.0]
    assert best_over_time(EMPTY, "min", [0.5, 2.9]).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize(("target", "seconds"), [(0.1, 1.0), (0.5, 1.0), (0.6, 3.0), (0.9, 4.0), (0.95, 10.0)])
def test_the_seconds_to_a_value_are_those_of_the_first_that_is_as_good(target: float, seconds: float) -> None:
    assert seconds_to(RISING, target, "max", 10.0) == seconds


def test_the_seconds_to_a_value_that_should_be_small() -> None:
    assert seconds_to(FALLING, 1.5, "min", 10.0) == 3.0
    assert seconds_to(FALLING, 0.5, "min", 10.0) == 10.0
    assert seconds_to(EMPTY, 0.5, "min", 10.0) == 10.0


def test_the_common_value_is_the_worst_median() -> None:
    def ending(*values: float) -> list[Run]:
        return [Run([(1.0, value)], 0.0) for value in values]

    runs = {"first": ending(0.9, 0.95, 0.1), "second": ending(0.8, 0.99, 0.7)}
    assert common_value(runs, "max") == 0.8
    assert common_value(runs, "min") == 0.9


def test_a_system_without_any_value_does_not_make_the_common_value_unreachable() -> None:
    assert common_value({"first": [RISING], "second": [EMPTY]}, "max") == 0.9
    assert common_value({"first": [FALLING], "second": [EMPTY]}, "min") == 1.0
    assert common_value({"first": [EMPTY]}, "max") is None


def test_the_median_of_two_seeds_is_a_value_that_both_reach() -> None:
    runs = [Run([(1.0, 0.8)], 0.0), Run([(1.0, 0.9)], 0.0)]
    assert median_best(runs, "max") == 0.8
    assert median_best(runs, "min") == 0.9


def test_the_figures_of_a_race() -> None:
    slow = Run([(2.0, 0.7), (8.0, 0.85), (9.0, 0.85)], 3.0)
    assert figures_of({"digits": {"maggy_like": [slow], "random": [RISING]}}, 10.0) == {
        "race.digits.common": 0.85,
        "race.digits.seconds_to_common.maggy_like": 8.0,
        "race.digits.best.maggy_like": 0.85,
        "race.digits.cpu_s.maggy_like": 3.0,
        "race.digits.trained_epochs.maggy_like": 3,
        "race.digits.seconds_to_common.random": 4.0,
        "race.digits.best.random": 0.9,
        "race.digits.cpu_s.random": 7.0,
        "race.digits.trained_epochs.random": 4,
        "race.digits.time_ratio_to_best": 2.0,
    }


def test_the_time_ratio_is_one_for_the_fastest_and_missing_without_us() -> None:
    slow = Run([(5.0, 0.9)], 0.0)
    assert (
        figures_of({"digits": {"maggy_like": [RISING], "ray": [slow]}}, 10.0)["race.digits.time_ratio_to_best"] == 1.0
    )
    assert "race.digits.time_ratio_to_best" not in figures_of({"digits": {"ray": [slow]}}, 10.0)


def test_a_system_without_any_value_counts_as_the_full_time() -> None:
    figures = figures_of({"digits": {"maggy_like": [RISING], "ray": [EMPTY]}}, 10.0)
    assert figures["race.digits.seconds_to_common.ray"] == 10.0
    assert "race.digits.best.ray" not in figures


def test_the_time_ratio_is_missing_if_we_found_no_value() -> None:
    figures = figures_of({"digits": {"maggy_like": [EMPTY], "ray": [RISING]}}, 10.0)
    assert figures["race.digits.seconds_to_common.maggy_like"] == 10.0
    assert "race.digits.time_ratio_to_best" not in figures


def test_values_after_the_deadline_do_not_count() -> None:
    assert read_marks("101.0 0.5\n103.5 0.6\n130.5 0.9\n", 100.0, 130.0) == [(1.0, 0.5), (3.5, 0.6)]


def a_search() -> None:
    """Two lines of documentation,

    of which one is empty.
    """
    # a comment

    value = 1
    print(value)


def test_only_the_code_of_a_search_is_counted() -> None:
    assert lines_of(System(a_search, a_search)) == 3  # type: ignore[arg-type]
    assert lines_of(System(a_search, a_search, (), (a_search,))) == 6  # type: ignore[arg-type]


def test_each_system_is_counted() -> None:
    assert all(lines_of(system) > 3 for system in SYSTEMS.values())
