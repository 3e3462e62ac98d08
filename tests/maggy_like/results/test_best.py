"""What a search says is best, end to end: its value, its step, its state, and the end at a target."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from maggy_like import (
    Choice,
    Confirmation,
    FailurePolicy,
    Float,
    Integer,
    Reporter,
    Result,
    Store,
    lagom,
    load_run,
)
from maggy_like.display import LogLine, Snapshot
from maggy_like.errors import ConfigError, UserError
from maggy_like.protocol.values import ReportError
from optimizers.core.events import AttemptStarted
from optimizers.core.trial import Checkpoint, Trial, TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.space.search_space import SearchSpace

pytestmark = pytest.mark.e2e

SPACE = {"lr": Float(0, 1)}


def search(train_fn: Callable[..., Any], directory: Path, **options: Any) -> Result:
    defaults = {"optimizer": "random", "n_trials": 4, "max_budget": 5, "engine": "inline", "progress": False}
    return lagom(train_fn, options.pop("space", SPACE), **{**defaults, "directory": directory, **options})


def overfits(lr: float, reporter: Any) -> None:
    """Best at the third step, whatever the learning rate."""
    state = reporter.restore() or {"step": 0}
    for step in range(state["step"] + 1, reporter.budget + 1):
        reporter.checkpoint({"step": step, "lr": lr})
        reporter.report(acc=0.9 - abs(lr - 0.3) / 10 - 0.02 * abs(step - 3), step=step)


class Recorder:
    """A display that keeps what it was shown."""

    keeps_lines = has_shown_summary = False

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.lines: list[str] = []

    def start(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.snapshots.append(snapshot)
        self.lines += [line.text for line in lines]

    finish = update


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr("maggy_like.api.run_settings.make_display", lambda *given, **options: recorder)
    return recorder


# -- the value ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2])
def test_a_trial_that_is_promoted_and_overfits_loses_nothing(tmp_path: Path, shown: Recorder, keep: int) -> None:
    options = {"optimizer": ASHA(min_budget=3, mode="promotion"), "n_trials": 9, "max_budget": 27}
    result = search(overfits, tmp_path, store=Store(keep_checkpoints=keep), **options)
    nearest = min(result.trials, key=lambda trial: abs(trial.config["lr"] - 0.3))
    assert nearest.attempt > 1  # so it was promoted, and ended far from its best
    assert nearest.last_value is not None
    assert nearest.last_value < 0.5
    assert result.best_trial is nearest
    assert result.best_step == 3
    assert result.best_value == pytest.approx(0.9 - abs(nearest.config["lr"] - 0.3) / 10)
    assert result.best_config == nearest.config
    assert result.load_best() == {"step": 3, "lr": nearest.config["lr"]}
    assert f"at step 3 (trial {nearest.id})" in repr(result)
    row = result.to_pandas().set_index("trial").loc[nearest.id]
    assert (row["value"], row["value_step"], row["step"], row["attempts"]) == (result.best_value, 3, 27, 1)
    assert result.to_optuna().best_value == result.best_value
    assert result.to_optuna().best_trial.number == nearest.id
    assert shown.snapshots[-1].best_value == result.best_value


def noisy(lr: float, reporter: Any) -> float:
    """Promoted trials get worse as often as better, and some fail."""
    draw = random.Random(f"{lr}{reporter.budget}")
    reporter.restore()
    reporter.checkpoint({})
    for step in range(1, reporter.budget + 1):
        reporter.report(accuracy=draw.random(), step=step)
        if draw.random() < 0.05:
            raise ValueError("bad luck")
    return draw.random()


def test_the_headline_never_falls(tmp_path: Path, shown: Recorder) -> None:
    result = search(noisy, tmp_path, optimizer="asha", n_trials=27, max_budget=27, failures=FailurePolicy(1))
    assert result.failures
    headlines = [snapshot.best_value for snapshot in shown.snapshots if snapshot.best_value is not None]
    assert headlines == sorted(headlines)
    assert headlines[-1] == result.best_value
    assert result.best_value == max(max(trial.curve.values, default=0.0) for trial in result.trials)
    assert result.to_optuna().best_value == result.best_value


@pytest.mark.parametrize("worth", ["best", "last"])
@pytest.mark.parametrize("first", [1, 0], ids=["from 1", "from 0"])
@pytest.mark.parametrize("returns", ["best", "last", "test score"])
def test_a_function_with_a_patience_of_its_own_hides_no_report(
    tmp_path: Path, returns: str, first: int, worth: str
) -> None:
    def train(x: float, reporter: Any) -> float:
        accuracies = {1: 0.5, 2: 0.7, 5: 0.95}
        epoch, best, bad = reporter.restore() or (first - 1, 0.0, 0)
        bad = 0
        while epoch + 1 < reporter.budget + first and bad < 2:
            epoch += 1
            accuracy = accuracies.get(epoch, 0.6)
            best, bad = (accuracy, 0) if accuracy > best else (best, bad + 1)
            reporter.checkpoint((epoch, best, bad))
            reporter.report(acc=accuracy, step=epoch)
        return {"best": best, "last": accuracy, "test score": 0.99}[returns]

    asha = ASHA(min_budget=9, mode="promotion", sampler="random")
    options = {"optimizer": asha, "n_trials": 3, "max_budget": 27, "metric": "acc", "value": worth}
    result = search(train, tmp_path, space={"x": Float(0, 1)}, **options)
    (top,) = (trial for trial in result.trials if trial.attempt > 1)
    table = result.curves()
    curve = table[table["trial"] == top.id].set_index("step")["value"].to_dict()
    assert list(curve) == list(range(first, 8))
    assert curve[5] == 0.95
    assert (top.value, top.value_step) == ((0.95, 5) if worth == "best" else (0.6, 7))
    assert result.load(top)[0] == top.value_step
    if worth == "best":
        assert (result.best_trial, result.best_value, result.best_step) == (top, 0.95, 5)
        assert result.load_best()[0] == 5


def test_a_returned_value_that_does_not_count_is_shown_once(tmp_path: Path, shown: Recorder) -> None:
    def train(lr: float, reporter: Any) -> float:
        reporter.report(acc=lr, step=1)
        return 2 + lr

    result = search(train, tmp_path, max_budget=1)
    assert result.best_value is not None
    assert result.best_value < 1
    assert [trial.last_value for trial in result.trials] == [2 + trial.config["lr"] for trial in result.trials]
    assert len([line for line in shown.lines if "without reporting it" in line]) == 1


def test_what_is_exported_as_the_best_is_the_best_though_it_has_failed(tmp_path: Path) -> None:
    def train(lr: float, reporter: Any) -> None:
        reporter.report(acc=1.0 if lr > 0.5 else 0.1, step=1)
        if lr > 0.5:
            raise ValueError("after a good report")

    points = [{"lr": 0.2}, {"lr": 0.8}]
    result = search(train, tmp_path, n_trials=2, points_to_evaluate=points, failures=FailurePolicy(1))
    assert result.best_trial is result.trials[1]
    assert result.best_trial.state is TrialState.FAILED
    assert "at step 1 (trial 1, which failed later)" in repr(result)
    assert (result.to_optuna().best_value, result.to_optuna().trials[1].user_attrs["state"]) == (1.0, "failed")


def test_with_the_last_value_the_newest_one_counts(tmp_path: Path) -> None:
    points = [{"lr": 0.3}, {"lr": 0.9}]
    result = search(overfits, tmp_path, value="last", n_trials=2, max_budget=9, points_to_evaluate=points, name="last")
    assert [trial.value for trial in result.trials] == [trial.curve.last for trial in result.trials]
    assert result.best_step == 9
    assert result.load_best() == {"step": 9, "lr": 0.3}
    with pytest.raises(ConfigError, match="was started with value='last', not 'best'"):
        search(overfits, tmp_path, n_trials=2, max_budget=9, name="last", resume=True)


def test_another_metric_than_that_of_the_run_is_named_as_callers_write_it(tmp_path: Path) -> None:
    search(overfits, tmp_path, n_trials=1, name="any")
    with pytest.raises(ConfigError, match="was started with metric=None, not 'acc'; resume it with the same"):
        search(overfits, tmp_path, n_trials=2, name="any", resume=True, metric="acc")


def test_a_wrong_rule_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"value must be one of 'best', 'last', got 'lats' \(did you mean 'last'"):
        search(overfits, tmp_path, value="lats")


def test_a_function_that_only_returns_has_no_steps(tmp_path: Path) -> None:
    result = search(lambda lr: lr, tmp_path, max_budget=27)
    assert result.best_step is None
    assert "at step" not in repr(result)
    table = result.to_pandas()
    assert table["step"].isna().all()
    assert table["value_step"].isna().all()
    assert "step" not in result.to_optuna().trials[0].user_attrs


# -- the state ----------------------------------------------------------------------------------------


def test_the_state_of_each_trial_can_be_read(tmp_path: Path) -> None:
    def every_second(lr: float, reporter: Any) -> None:
        for step in range(1, reporter.budget + 1):
            if step % 2 == 0:
                reporter.checkpoint({"step": step})
            reporter.report(acc=-abs(step - 3) - step / 100, step=step)

    result = search(every_second, tmp_path, n_trials=2)
    for trial in (0, 1, result.trials[1]):
        with pytest.warns(UserWarning, match=r"of trial . is of step 2 .* none was saved at step 3"):
            assert result.load(trial) == {"step": 2}  # of 2 and 4, both one off, the better
    assert result.best_step == 3
    assert result.best_checkpoint is not None
    assert result.best_checkpoint == result.checkpoint_of(result.trials[0])
    assert result.best_checkpoint.startswith("file://")


def test_a_state_that_is_saved_after_its_report_names_its_step(tmp_path: Path) -> None:
    def reports_first(lr: float, reporter: Any) -> None:
        for step in range(1, reporter.budget + 1):
            reporter.report(acc=-abs(step - 3) + lr, step=step)
            reporter.checkpoint({"step": step}, step=step)

    result = search(reports_first, tmp_path, n_trials=2)
    assert result.best_step == 3
    assert [result.load(trial) for trial in result.trials] == [{"step": 3}] * 2


def test_a_state_of_a_step_that_was_not_reported_is_refused() -> None:
    reporter = Reporter()
    with pytest.raises(ReportError, match=r"must be a reported step, got 2, and there is none"):
        reporter.checkpoint({}, step=2)
    reporter.report(acc=0.5, step=1)
    with pytest.raises(ReportError, match=r"the last one is 1; report the step first, or omit step"):
        reporter.checkpoint({}, step=2)
    reporter.checkpoint({"step": 1}, step=1)
    assert reporter.restore() == {"step": 1}


def test_parameters_and_columns_of_one_name_stand_side_by_side(tmp_path: Path) -> None:
    def half(step: float, value: float) -> float:
        return step / 2

    result = search(half, tmp_path, space={"step": Float(0, 1), "value": Float(0, 1)})
    table = result.to_pandas()
    assert list(table["value"]) == [step / 2 for step in table["param_step"]]
    assert list(table["param_value"]) == [trial.config["value"] for trial in result.trials]
    assert table["step"].isna().all()


@pytest.mark.parametrize("metric", ["loss", ["loss", "cost"]])
def test_other_numbers_that_are_returned_have_columns(metric: str | list[str], tmp_path: Path) -> None:
    def train(lr: float) -> dict[str, Any]:
        return {"loss": lr, "cost": 1.0, "test_loss": 2 * lr, "seconds": 7, "lr": 3, "note": "good"}

    direction = "min" if metric == "loss" else ["min", "min"]
    table = search(train, tmp_path, metric=metric, direction=direction).to_pandas()
    assert list(table["test_loss"]) == [2 * lr for lr in table["lr"]]
    assert (*table.loc[0, ["attribute_seconds", "attribute_lr", "note"]],) == (7, 3, "good")
    assert "loss" not in table
    assert ("cost" in table) is (metric == "loss")


def table_of(*trials: Trial, **space: Float) -> pandas.DataFrame:
    return Result(list(trials), None, "acc", "max", "completed", 1.0, Path(), SearchSpace(space)).to_pandas()


def test_no_parameter_takes_the_column_that_another_was_given() -> None:
    row = table_of(Trial(0, {"value": 0.1, "param_value": 0.2}), value=Float(0, 1), param_value=Float(0, 1)).loc[0]
    assert (row["param_param_value"], row["param_value"]) == (0.1, 0.2)


def test_a_table_without_trials_has_its_columns() -> None:
    empty, full = table_of(lr=Float(0, 1)), table_of(Trial(0, {"lr": 0.5}), lr=Float(0, 1))
    assert list(empty.columns) == list(full.columns)
    assert empty["step"].tolist() == []


def test_large_steps_are_exact_in_the_table() -> None:
    largest = (1 << 63) - 1
    table = table_of(Trial(0, {}), Trial(1, {}, value=1.0, reported=largest, value_step=largest - 1, parent=0))
    assert table["step"].tolist() == [pandas.NA, largest]
    assert table["value_step"].tolist() == [pandas.NA, largest - 1]
    assert table["parent"].tolist() == [pandas.NA, 0]


ACCURACY = [0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7]


@pytest.mark.parametrize("saves", ["every fifth", "all", "as good", "at the end"])
def test_a_state_of_another_step_is_not_taken_for_that_of_the_best_value(
    saves: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(lr: float, reporter: Reporter) -> None:
        for step, accuracy in enumerate(ACCURACY, 1):
            if saves == "all" or (step % 5 == 0 and saves != "at the end"):
                reporter.checkpoint(step)
            reporter.report(acc=0.9 if saves == "as good" and step == 5 else accuracy, step=step)
        if saves == "at the end":
            reporter.checkpoint(9)

    result = search(train, tmp_path, max_budget=9, n_trials=2, progress="plain")
    said = "".join(capfd.readouterr())
    (best,) = {trial.id for trial in result.trials} - {1}
    states = {"every fifth": (5, 0.4), "at the end": (9, 0.7)}
    if saves not in states:
        assert "no checkpoint of its best value" not in said
        assert result.load_best() == result.load(1) == (3 if saves == "all" else 5)
        return
    step, value = states[saves]
    sentence = f"the checkpoint of trial {best} is of step {step} ({value}), since none was saved at step 3 (0.9)"
    expected = f"has no checkpoint of its best value, 0.9 at step 3, so load_best() returns that of step {step};"
    assert said.count(expected) == 1
    for one in (result, load_run(result.directory)):
        with pytest.warns(UserWarning, match=re.escape(sentence)) as warned:
            assert one.load_best() == step
        assert warned[0].filename == __file__
        assert one.trials[0].saved_steps == (step,)
        assert sentence in repr(one)


LARGE = 2**53 + 3
"""An integer that no float has."""


def test_numbers_are_what_they_were_in_tables_and_files(tmp_path: Path) -> None:
    def train(mixed: float, units: int = 0, **others: Any) -> dict[str, Any]:
        return {"score": float(units), "parameters": LARGE, "layers": np.int64(3), "big": 1 << 64, "flag": True}

    when = {"kind": "a"}
    space = {"kind": ["a", "b"], "units": Integer(1, 64, when=when), "key": Choice([LARGE, LARGE + 2], when=when)}
    space |= {"bias": Choice([True, False], when=when), "mixed": Choice([0.5, LARGE])}
    result = search(train, tmp_path, space=space, metric="score", direction="max", n_trials=8, seed=0)
    csv = tmp_path / "trials.csv"
    result.to_pandas().to_csv(csv, index=False)
    types = {"units": "Int64", "key": "Int64", "bias": "boolean", "mixed": "object"}
    for table in (result.to_pandas(), load_run(result.directory).to_pandas(), pandas.read_csv(csv, dtype=types)):
        assert {name: str(table.dtypes[name]) for name in types} == types
        assert (str(table.dtypes["parameters"]), str(table.dtypes["layers"])) == ("int64", "int64")
        for trial, row in zip(result.trials, table.itertuples(index=False), strict=True):
            for name in ("units", "key", "bias"):
                assert getattr(row, name) is pandas.NA or getattr(row, name) == trial.config[name]
            assert (row.parameters, row.layers) == (LARGE, 3)
            assert str(row.mixed) == str(trial.config["mixed"])
    assert {trial.config["kind"] for trial in result.trials} == {"a", "b"}
    assert all(trial.metrics["big"] == float(1 << 64) for trial in result.trials)


def test_a_configuration_that_is_changed_changes_no_result(tmp_path: Path) -> None:
    def train(x: float, layers: list[int], seed: int = 0) -> float:
        layers.append(1)
        return x

    options: dict[str, Any] = {"optimizer": "random", "direction": "max", "n_trials": 8, "engine": "inline"}
    space = {"x": Float(0, 1), "layers": [[64, 32], [16]]}
    result = lagom(train, space, confirm=Confirmation(top=2, repeats=2), directory=tmp_path, progress=False, **options)
    assert result.confirmed is not None
    assert result.recommended is not None
    before = [copy.deepcopy(trial.config) for trial in result.trials]
    result.rerun(0, train)
    for config in (result.best_config, result.confirmed.config, result.recommended.config):
        assert config is not None
        config.pop("layers").append(8)
    assert [trial.config for trial in result.trials] == before
    assert result.space.domains["layers"] == Choice([[64, 32], [16]])
    assert result.best_config in before


def test_a_state_of_no_report_is_better_than_none(tmp_path: Path) -> None:
    def silent(lr: float, reporter: Any) -> float:
        reporter.checkpoint({"lr": lr})
        return lr

    result = search(silent, tmp_path)
    assert result.load_best() == result.best_config


def test_a_state_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    result = search(lambda lr: lr, tmp_path)
    best = result.best_trial
    assert best is not None
    assert result.best_checkpoint is None
    with pytest.raises(UserError, match=rf"trial {best.id} has no checkpoint; call reporter.checkpoint\(state\)"):
        result.load_best()
    with pytest.raises(UserError, match="trial must be one of the 4 trials of this result, got 99"):
        result.load(99)
    best.checkpoint = Checkpoint(1, "00000/1-1.dcp")
    with pytest.raises(UserError, match="is sharded; read it with torch"):
        result.load_best()
    best.checkpoint = Checkpoint(1, "00000/1-1.pkl")
    with pytest.raises(UserError, match="does not exist"):
        result.load_best()


# -- the direction ------------------------------------------------------------------------------------


def loses(lr: float, reporter: Any) -> None:
    for step in range(1, reporter.budget + 1):
        reporter.report(val_loss=lr + 1 / step, step=step)


@pytest.mark.parametrize("options", [{}, {"metric": "val_loss"}, {"direction": "minimize"}])
def test_a_loss_is_made_small(tmp_path: Path, shown: Recorder, options: dict[str, Any]) -> None:
    result = search(loses, tmp_path, name="run", **options)
    assert (result.direction, result.objective) == ("min", "val_loss")
    assert result.best_config == min((trial.config for trial in result.trials), key=lambda config: config["lr"])
    assert not [line for line in shown.lines if "direction" in line]
    assert shown.snapshots[-1].direction == "min"
    again = search(loses, tmp_path, name="run", resume=True, n_trials=5, **options)
    assert again.direction == "min"
    assert len(again.trials) == 5


@pytest.mark.parametrize("options", [{}, {"metric": "wobble"}])
def test_a_name_that_says_nothing_is_told_once_and_so_is_the_mend(
    tmp_path: Path, shown: Recorder, options: dict[str, Any]
) -> None:
    def wobbles(lr: float, reporter: Any) -> None:
        reporter.report(wobble=lr, step=1)

    result = search(wobbles, tmp_path, **options)
    assert result.direction == "max"
    (line,) = [line for line in shown.lines if "direction" in line]
    assert "'wobble' is maximized: its name does not say whether" in line
    assert "pass direction='min' to minimize it" in line


def test_each_of_several_objectives_has_its_own(tmp_path: Path) -> None:
    result = search(lambda lr: {"accuracy": lr, "latency": lr}, tmp_path, metric=["accuracy", "latency"])
    assert (result.direction, result.others) == ("max", (("min", "latency"),))


def test_a_search_that_learns_from_an_earlier_one_goes_the_same_way(tmp_path: Path) -> None:
    old = search(loses, tmp_path)
    result = search(loses, tmp_path, name="new", warm_start=[old])
    assert result.direction == "min"
    assert result.trials[0].config == old.best_config
    assert search(loses, tmp_path, name="new", warm_start=[old], resume=True).direction == "min"
    with pytest.raises(ConfigError, match="has direction='min', and this one has 'max'"):
        search(loses, tmp_path, warm_start=[old], direction="max")


# -- the target ---------------------------------------------------------------------------------------


def test_a_search_ends_once_a_trial_has_the_target(tmp_path: Path, shown: Recorder) -> None:
    points = [{"lr": 0.1}, {"lr": 0.9}, {"lr": 0.2}]
    result = search(loses, tmp_path, name="run", points_to_evaluate=points, n_trials=20, target=0.36)
    assert result.ending == "target"
    assert len(result.trials) == 1
    assert result.best_value is not None
    assert result.best_value <= 0.36
    assert "target reached after" in repr(result)
    seen: list[Any] = []
    again = search(
        loses, tmp_path, name="run", n_trials=20, points_to_evaluate=points, target=0.36, resume=True,
        callbacks=[seen.append],
    )  # fmt: skip
    assert (again.ending, [event for event in seen if isinstance(event, AttemptStarted)]) == ("target", [])
    more = search(loses, tmp_path, name="run", n_trials=3, points_to_evaluate=points, target=0.1, resume=True)
    assert (more.ending, len(more.trials)) == ("completed", 3)


def test_a_value_that_is_returned_reaches_the_target_too(tmp_path: Path) -> None:
    points = [{"lr": 0.1}, {"lr": 0.9}, {"lr": 0.2}]
    result = search(lambda lr: lr, tmp_path, points_to_evaluate=points, target=0.5)
    assert (result.ending, [trial.state for trial in result.trials]) == ("target", [TrialState.COMPLETED] * 2)


def test_the_training_follows_a_search_that_reached_its_target(tmp_path: Path) -> None:
    options = {"engine": "local", "workers": 1, "target": 0.5, "train_best": 7, "n_trials": 20}
    result = search(lambda lr: lr, tmp_path, points_to_evaluate=[{"lr": 0.9}], **options)
    assert result.ending == "target"
    assert result.training is not None
    assert (result.training.trial.config, result.training.trial.state) == ({"lr": 0.9}, TrialState.COMPLETED)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"target": "high"}, "target must be a finite number, got 'high'"),
        ({"target": float("nan")}, "target must be a finite number"),
        ({"target": True}, "target must be a finite number"),
        ({"target": 1.0, "metric": ["a", "b"]}, "target=1.0 needs one objective"),
    ],
)
def test_a_target_that_is_none_is_told(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        search(loses, tmp_path, **options)
