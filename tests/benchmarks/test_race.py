"""What the race, `make bench` and the comparison of SearchCV say of figures that are written down here."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.race import (
    Mark,
    Run,
    best_over_time,
    common_value,
    figures_of,
    improvements,
    median_best,
    read_marks,
    recorded_figures_of,
    run_of,
    seconds_to,
)
from benchmarks.race_systems import SYSTEMS, System, lines_of
from benchmarks.search_cv import figures_of as figures_of_searches

RISING = Run([Mark(1.0, 0.5), Mark(2.0, 0.4), Mark(3.0, 0.8), Mark(4.0, 0.9)], 7.0)
FALLING = Run([Mark(1.0, 2.0), Mark(2.0, math.nan), Mark(3.0, 1.0)], 5.0)
EMPTY = Run([], 1.0)


def test_only_better_values_are_improvements() -> None:
    assert improvements(RISING, "max") == [(1.0, 0.5), (3.0, 0.8), (4.0, 0.9)]
    assert improvements(RISING, "min") == [(1.0, 0.5), (2.0, 0.4)]


def test_a_training_that_diverged_is_no_improvement() -> None:
    assert improvements(FALLING, "min") == [(1.0, 2.0), (3.0, 1.0)]
    assert improvements(Run([Mark(1.0, math.nan), Mark(2.0, 1.0)], 0.0), "min") == [(2.0, 1.0)]


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
        return [Run([Mark(1.0, value)], 0.0) for value in values]

    runs = {"first": ending(0.9, 0.95, 0.1), "second": ending(0.8, 0.99, 0.7)}
    assert common_value(runs, "max") == 0.8
    assert common_value(runs, "min") == 0.9


def test_a_system_without_any_value_does_not_make_the_common_value_unreachable() -> None:
    assert common_value({"first": [RISING], "second": [EMPTY]}, "max") == 0.9
    assert common_value({"first": [FALLING], "second": [EMPTY]}, "min") == 1.0
    assert common_value({"first": [EMPTY]}, "max") is None


def test_the_median_of_two_seeds_is_a_value_that_both_reach() -> None:
    runs = [Run([Mark(1.0, 0.8)], 0.0), Run([Mark(1.0, 0.9)], 0.0)]
    assert median_best(runs, "max") == 0.8
    assert median_best(runs, "min") == 0.9


def test_the_figures_of_a_race() -> None:
    slow = Run([Mark(2.0, 0.7), Mark(8.0, 0.85), Mark(9.0, 0.85)], 3.0)
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
    slow = Run([Mark(5.0, 0.9)], 0.0)
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
    assert read_marks("101.0 0.5 1.0 0\n103.5 0.6 2.5 1\n130.5 0.9 1.0 0\n", 100.0, 130.0) == [
        Mark(1.0, 0.5, 1.0, False),
        Mark(3.5, 0.6, 2.5, True),
    ]


def test_the_figures_of_a_recorded_race() -> None:
    ours = Run([Mark(2.0, 0.5, 1.0), Mark(4.0, 0.2, 2.0, True)], 7.0, 9, 100.0)
    theirs = Run([Mark(2.0, 0.6, 2.0), Mark(8.0, 0.4, 6.0)], 3.0, 2, 50.0)
    found = recorded_figures_of({"maggy_like": [ours], "ray": [theirs]}, 10.0, 8, {"best": 0.1, "median": 0.5})
    assert found == {
        "regret.maggy_like": pytest.approx(0.25),
        "busy.maggy_like": pytest.approx(3.0 / (8 * 9.0)),
        "trainings.maggy_like": 1,
        "cpu_s.maggy_like": 7.0,
        "processes.maggy_like": 9,
        "memory_mb.maggy_like": 100.0,
        "ratio.ray": pytest.approx(0.4),
        "ratio_to_found.ray": pytest.approx(0.5),
        "regret.ray": pytest.approx(0.75),
        "busy.ray": pytest.approx(8.0 / (8 * 10.0)),
        "trainings.ray": 0,
        "cpu_s.ray": 3.0,
        "processes.ray": 2,
        "memory_mb.ray": 50.0,
    }


def test_a_value_that_we_do_not_reach_counts_as_the_full_time() -> None:
    better = Run([Mark(5.0, 0.3)], 0.0)
    found = recorded_figures_of({"maggy_like": [EMPTY], "ray": [better]}, 10.0, 8, {"best": 0.1, "median": 0.5})
    assert found["ratio.ray"] == 1.0
    assert found["ratio_to_found.ray"] == 2.0
    assert "regret.maggy_like" not in found


def test_a_run_that_was_kept_is_the_same() -> None:
    run = Run([Mark(1.0, 0.5, 0.5, True)], 7.0, 9, 100.0)
    assert run_of(json.loads(json.dumps(run))) == run


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


# -- what `make bench` says -------------------------------------------------------------------------


EVENT = "virtual.event_us.10000"


def guarded(monkeypatch: pytest.MonkeyPatch, base: list[float], now: list[float]) -> int:
    """The exit status, with these figures of the earlier commit and of this tree, in the order of the measurements."""
    measured = {False: iter(base), True: iter(now)}
    monkeypatch.setattr(guard, "measure", lambda name, tree: {EVENT: next(measured[tree == guard.ROOT])})
    monkeypatch.setattr(guard, "git", lambda *arguments: "abc1234")
    monkeypatch.setattr("sys.argv", ["guard", "--only", "virtual"])
    return guard.main()


def test_what_is_slower_in_all_turns_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(monkeypatch, [10.0, 10.5, 11.0, 10.1], [13.0, 12.5, 12.2, 14.0]) == 1
    assert f"1 of 1 got slower by more than 20%: {EVENT}" in capsys.readouterr().out


def test_what_is_slower_once_may_be_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guarded(monkeypatch, [10.0, 11.0], [13.0, 11.0]) == 0
    assert guarded(monkeypatch, [10.0, 10.5, 11.0], [13.0, 12.5, 11.9]) == 0


def test_what_is_not_slower_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guarded(monkeypatch, [10.0], [11.0]) == 0


def test_the_code_of_an_earlier_commit_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "virtual.py").write_text(
        "import json, sys\njson.dump({'event_us.10000': 7.0, 'other': 1.0}, open(sys.argv[-1], 'w'))\n"
    )
    assert guard.measure("virtual", tmp_path) == {EVENT: 7.0}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["guard", "--base", "nowhere"])
    monkeypatch.setattr(guard, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="compares with a commit of this repository"):
        guard.main()


# -- SearchCV beside other searches -----------------------------------------------------------------


def test_the_time_to_the_same_score_is_that_of_the_smallest_search_that_reaches_what_all_do() -> None:
    found = {"first": {10: (1.0, 0.8), 40: (4.0, 0.95)}, "second": {10: (2.0, 0.91), 40: (9.0, 0.9)}}
    assert figures_of_searches(found) == {
        "seconds.first": 4.0,
        "score.first": 0.95,
        "seconds_to_same.first": 4.0,
        "seconds.second": 9.0,
        "score.second": 0.9,
        "seconds_to_same.second": 2.0,
        "score.same": 0.9,
    }
