"""Several objectives on real processes: what the result and the displays make of them."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pandas
import pytest

from maggy_like import FailurePolicy, Float, Result, lagom
from maggy_like.display.text import config_text, number
from maggy_like.errors import ConfigError
from maggy_like.results.tables import ranked
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e

SPACE = {"x": Float(0, 1)}
GOALS: dict[str, Any] = {"metric": ["accuracy", "latency"], "direction": ["max", "min"]}


def trade(x: float, reporter: Any) -> dict[str, float]:
    """Below one half both get better with x; above, each step of accuracy costs latency."""
    reporter.report(accuracy=x / 2)
    return {"accuracy": x, "latency": abs(x - 0.5), "size": 3.0}


def search(train_fn: Any, directory: Path, **options: Any) -> Result:
    defaults = {**GOALS, "optimizer": "sobol", "n_trials": 8, "engine": "inline", "directory": directory}
    return lagom(train_fn, SPACE, **{**defaults, "max_budget": 1, "progress": False, **options})


def test_two_objectives_give_a_pareto_set(tmp_path: Path) -> None:
    result = search(trade, tmp_path, engine="local", workers=2)
    assert result.counts == {TrialState.COMPLETED: 8}
    above = [trial for trial in result.trials if trial.config["x"] > 0.5]
    below = [trial for trial in result.trials if trial.config["x"] <= 0.5]
    nearest = min(result.trials, key=lambda trial: abs(trial.config["x"] - 0.5))
    assert {trial.id for trial in result.pareto} <= {trial.id for trial in (*above, nearest)}
    assert len(result.pareto) >= len(above)
    assert below
    assert result.best_trial is None
    assert result.best_config is None
    assert result.best_value is None
    assert result.trials[0].values == (result.trials[0].config["x"], abs(result.trials[0].config["x"] - 0.5))


def test_the_result_and_the_set_print_a_line_for_each_trial(tmp_path: Path) -> None:
    result = search(trade, tmp_path, n_trials=32)
    lines = repr(result).splitlines()
    n = len(result.pareto)
    assert lines[1] == f"Pareto set of {n} (max accuracy, min latency):"
    assert lines[2].split() == ["trial", "accuracy", "latency", "config"]
    shown = [float(line.split()[1]) for line in lines[3:13]]
    assert shown == sorted(shown, reverse=True)
    assert f"and {n - 10} more in result.pareto" in lines
    printed = repr(result.pareto).splitlines()
    assert len(printed) == n
    first = result.pareto[0]
    accuracy, latency = map(number, first.values)
    assert printed[0] == f"trial {first.id}: accuracy {accuracy}, latency {latency} ({config_text(first.config)})"
    page = result._repr_html_()
    assert html.escape(lines[1]) in page
    assert page.count("<tr") == n + 1
    with pandas.option_context("display.max_rows", 4):
        assert result._repr_html_().count("<tr") == 4 + 2  # the head, and a row of dots
    table = result.to_pandas()
    assert list(table["value_accuracy"]) == [trial.value for trial in result.trials]
    assert "value" not in table.columns


def test_a_missing_objective_fails_the_trial_and_is_named(tmp_path: Path) -> None:
    def forgetful(x: float) -> dict[str, float]:
        return {"accuracy": x} if x > 0.5 else {"latency": x}

    result = search(forgetful, tmp_path, failures=FailurePolicy(max_identical_failures=0))
    assert result.counts == {TrialState.FAILED: 8}
    said = {trial.failure.message for trial in result.failures if trial.failure is not None}
    assert any("the metric 'latency' is missing; given: accuracy" in message for message in said)
    assert any("the metric 'accuracy' must be given, got latency" in message for message in said)
    assert "no trial has all values (max accuracy, min latency)" in repr(result)
    assert "no trial has all values" in result._repr_html_()
    assert result.pareto == []


def test_a_search_without_a_trial_can_be_shown(tmp_path: Path) -> None:
    assert ranked(search(trade, tmp_path), pandas.DataFrame()).empty


def test_the_last_reports_count_where_the_function_returns_nothing(tmp_path: Path) -> None:
    def report(x: float, reporter: Any) -> None:
        reporter.report(accuracy=x, latency=1.0)
        reporter.report(accuracy=x, latency=2.0)

    result = search(report, tmp_path, max_budget=2)
    assert {trial.values[1] for trial in result.trials} == {2.0}


def test_a_resumed_search_has_the_same_pareto_set_and_refuses_other_objectives(tmp_path: Path) -> None:
    first = search(trade, tmp_path, name="run", n_trials=4)
    again = search(trade, tmp_path, name="run", n_trials=8, resume=True)
    assert [trial.values for trial in again.trials[:4]] == [trial.values for trial in first.trials]
    straight = search(trade, tmp_path)
    assert [trial.config for trial in again.pareto] == [trial.config for trial in straight.pareto]
    with pytest.raises(ConfigError, match=r"started with direction=\['max', 'min'\], not \['max', 'max'\]"):
        search(trade, tmp_path, name="run", resume=True, direction=["max", "max"])
    with pytest.raises(ConfigError, match=r"started with metric=\['accuracy', 'latency'\], not"):
        search(trade, tmp_path, name="run", resume=True, metric=["accuracy", "size"])


def test_displays_show_the_size_of_the_pareto_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = search(trade, tmp_path, progress="plain")
    out = capsys.readouterr().out
    assert "sobol, max accuracy, min latency" in out
    assert f"{len(result.pareto)} trials in the Pareto set" in out


def test_the_pareto_set_is_exported_to_optuna(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    result = search(trade, tmp_path)
    study = result.to_optuna()
    assert {trial.number for trial in study.best_trials} == {trial.id for trial in result.pareto}
    assert study.metric_names == ["accuracy", "latency"]
