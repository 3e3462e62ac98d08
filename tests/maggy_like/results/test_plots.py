"""The pictures of a run, as data: no browser draws them here."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_pages import RUNGS, write_run

from maggy_like import Choice, Float, Integer, Reporter, Result, SearchSpace, compare_runs, lagom, load_run
from maggy_like.errors import UserError
from maggy_like.results.data import ParetoSet
from maggy_like.results.figures.style import COLORS, SERIES, SYMBOLS, series, whole_ticks
from maggy_like.results.plots import Plots
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return load_run(write_run(tmp_path_factory.mktemp("runs"), "drawn", 60, 4))


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def test_the_plots_are_named_where_none_is_called(result: Result) -> None:
    named = "curves(), history(), importance(), parallel(), pareto(), slices(), timeline(), training()"
    assert repr(result.plot) == f"plots of {result.name}: {named}"


def test_the_history_rises_to_the_best(result: Result) -> None:
    found = traces(result.plot.history())
    best = found["best so far"].y
    assert list(best) == sorted(best)
    assert best[-1] == result.best_value
    counts = result.counts
    assert len(found["stopped"].x) == counts[TrialState.STOPPED]
    assert len(found["completed"].x) == counts[TrialState.COMPLETED]


def test_curves_have_the_rungs_and_the_stops(result: Result) -> None:
    figure = result.plot.curves()
    assert [shape.x0 for shape in figure.layout.shapes] == list(RUNGS)
    assert len(traces(figure)["ended early"].x) == result.counts[TrialState.STOPPED]
    assert max(traces(figure)["best"].y) == result.best_value


def test_the_timeline_has_every_attempt_on_its_worker(result: Result) -> None:
    figure = result.plot.timeline()
    bars = [value for trace in figure.data for value in trace.y if value is not None]
    assert len(bars) == 3 * len(result.trials)
    assert set(bars) == {0, 1, 2, 3}
    assert figure.layout.title.subtitle.text.startswith("4 workers busy 96.4 % of the time ")


def test_states_differ_in_color_and_in_shape(result: Result) -> None:
    markers = {name: trace.marker for name, trace in traces(result.plot.history()).items() if name != "best so far"}
    assert len({marker.symbol for marker in markers.values()}) == len(markers)
    assert min(marker.size for marker in markers.values()) >= 8
    assert len({SYMBOLS[state] for state in TrialState} | {COLORS[state] for state in TrialState}) == 12


def test_series_differ_in_color_and_in_dashes() -> None:
    styles = [series(place) for place in range(len(SERIES))]
    assert len({style["color"] for style in styles}) == len(SERIES)
    assert all(one["dash"] != other["dash"] for one, other in pairwise(styles))


def test_curves_are_distinguished_by_a_parameter(result: Result) -> None:
    lines = [trace for trace in result.plot.curves(by="activation").data if trace.name != "ended early"]
    assert [trace.name for trace in lines] == ["relu", "tanh", "gelu"]
    assert len({trace.line.color for trace in lines}) == 3
    of_tanh = {trial.id for trial in result.trials if trial.config["activation"] == "tanh"}
    assert {int(said.split(",")[0].removeprefix("trial ")) for said in lines[1].text if said} == of_tanh
    with pytest.raises(UserError, match=r"no parameter 'activaton'.*'activation'"):
        result.plot.curves(by="activaton")


def test_curves_of_a_wide_range_are_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    def train(n: int, reporter: Reporter) -> None:
        reporter.report(score=n)

    points = [{"n": n} for n in (10**10, 9, 200)]
    space = {"n": Integer(1, 2**40)}
    search = lagom(train, space, optimizer="random", points_to_evaluate=points, n_trials=3, direction="max",
                   engine="inline", directory=tmp_path, progress=False)  # fmt: skip
    assert [trace.name for trace in search.plot.curves(by="n").data] == ["9", "200", "10000000000"]


def test_a_short_axis_of_steps_has_whole_ticks(result: Result) -> None:
    assert whole_ticks([3, 10]) == {"dtick": 1}
    assert whole_ticks([3, 11]) == {}
    figure = compare_runs([result, result.directory]).plot()
    assert figure.layout.xaxis.dtick is None  # seconds


def test_ticks_of_whole_numbers_are_whole(result: Result) -> None:
    (trace,) = result.plot.parallel(["units", "lr"]).data
    units, lr, accuracy = trace.dimensions
    assert all(text.isdigit() for text in units.ticktext)
    assert [round(tick) for tick in units.tickvals] == [int(text) for text in units.ticktext]
    assert [10**tick for tick in lr.tickvals] == pytest.approx([float(text) for text in lr.ticktext], rel=0.01)
    assert len(accuracy.tickvals) == 5


def test_ticks_of_slices_are_powers_of_ten_in_plain_numbers(result: Result) -> None:
    axis = result.plot.slices(["lr"]).layout.xaxis
    assert list(axis.ticktext) == ["0.0001", "0.001", "0.01", "0.1"]


def test_a_line_of_the_parallel_coordinates_goes_through_a_trials_values(result: Result) -> None:
    (trace,) = result.plot.parallel(["lr", "activation"]).data
    lr, activation, accuracy = trace.dimensions
    best = list(accuracy.values).index(result.best_value)
    assert result.best_config is not None
    assert 10 ** lr.values[best] == pytest.approx(result.best_config["lr"])
    assert activation.ticktext[activation.values[best]] == result.best_config["activation"]


def test_each_parameter_has_a_slice(result: Result) -> None:
    figure = result.plot.slices()
    assert len(figure.data) == len(result.space.names)
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis4.type == "category"
    with pytest.raises(UserError, match=r"no parameter 'unit'.*'units'"):
        result.plot.slices(["unit"])
    with pytest.raises(UserError, match=r"must be a list of parameters' names, got .*; write params=\['\w+'\]$"):
        result.plot.slices("units")


def test_importance_is_that_of_the_result(result: Result) -> None:
    figure = result.plot.importance()
    (bars,) = figure.data
    assert dict(zip(figure.layout.yaxis.ticktext, bars.x, strict=True)) == result.importance()


def test_long_names_and_values_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    stem = "model.encoder.layers.attention.projection.dropout."
    paths = [f"/{'data/' * 10}{name}" for name in ("<one>", "two")]
    space = SearchSpace({f"{stem}first": Float(0, 1), f"{stem}second": Float(0, 1), "file": Choice(paths)})
    study = Study(space, RandomSearch(), n_trials=30)
    while trial := study.ask():
        study.tell(trial, trial.config[f"{stem}first"])
    found = Result(study.trials, study.best, "x", "max", "completed", 1.0, tmp_path, space)
    importance = found.plot.importance()
    assert len(set(importance.data[0].y)) == 3
    assert len(set(importance.layout.yaxis.ticktext)) == 3
    slices = found.plot.slices()
    assert len({slices.layout[axis].title.text for axis in ("xaxis", "xaxis2", "xaxis3")}) == 3
    assert set(slices.data[2].x) == set(paths)
    assert [text[-7:] for text in slices.layout.xaxis3.ticktext] == ["one&gt;", "ata/two"]
    assert len(set(found.plot.parallel().data[0].dimensions[2]["values"])) == 2


def test_an_inactive_parameter_and_a_wild_value_are_drawn(tmp_path: Path) -> None:
    space = SearchSpace(kind=Choice(["a", "b"]), deep=Float(0, 1, when={"kind": "b"}), x=Float(0, 1))
    study = Study(space, RandomSearch(), direction="min", n_trials=40)
    while trial := study.ask():
        study.tell(trial, {0: 1e30, 1: math.nan}.get(trial.id, trial.config["x"]))
    wild = Result(study.trials, study.best, "<b>loss", "min", "completed", 1.0, tmp_path / "gone", space)
    (trace,) = wild.plot.parallel().data
    assert len(trace.dimensions[0].values) == 39
    assert "-" in trace.dimensions[1].ticktext
    assert "Extreme values" in wild.plot.slices().layout.title.subtitle.text
    assert wild.plot.slices().layout.yaxis.title.text == "&lt;b&gt;loss"
    with pytest.raises(UserError, match="journal is missing"):
        wild.plot.history()
    with pytest.raises(UserError, match="no trial has reported anything"):
        Plots(Result([], None, "x", "min", "completed", 1.0, tmp_path, space)).curves()


def test_the_pareto_set_is_drawn(result: Result, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plot.pareto\(\) needs several objectives"):
        result.plot.pareto()
    space = SearchSpace(x=Float(0, 1))
    study = Study(space, RandomSearch(), direction=["max", "min"], objectives=["gain", "cost"], n_trials=30)
    while trial := study.ask():
        study.tell(trial, [trial.config["x"], (trial.config["x"] - 0.3) ** 2])
    front = ParetoSet(study.pareto, ["gain", "cost"])
    several = Result(
        study.trials, None, "gain", "max", "completed", 1.0, tmp_path, space, (("min", "cost"),), front
    )  # fmt: skip
    found = traces(several.plot.pareto())
    assert len(found["Pareto set"].x) == len(front)
    assert len(found["dominated"].x) == 30 - len(front)


def test_no_trial_is_left_out_of_the_history_where_one_lacks_an_objective(tmp_path: Path) -> None:
    def train(x: int) -> dict[str, float]:
        return {"gain": math.nan if x == 2 else x, "cost": x}

    several = lagom(train, {"x": [1, 2, 3]}, optimizer="grid", metric=["gain", "cost"], direction=["max", "min"],
                    engine="inline", directory=tmp_path, progress=False)  # fmt: skip
    assert not several.plot.history().layout.title.subtitle.text


def test_runs_are_drawn_together(result: Result, tmp_path: Path) -> None:
    other = write_run(tmp_path, "other", 10, 1)
    assert set(traces(compare_runs([result, other]).plot())) == {"drawn", "other"}
