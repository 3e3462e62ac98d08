"""``confirm=``: the best configurations of a search are trained again with other seeds, with real processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from maggy_like import Confirmation, Float, Result, lagom, load_run
from maggy_like.command_line import main
from maggy_like.errors import UserError
from optimizers.core.events import AttemptEnded, Event, TrialCreated
from optimizers.core.trial import Repeat

SPACE = {"x": Float(0.0, 1.0)}
POINTS = [{"x": 0.1}, {"x": 0.5}, {"x": 0.9}]
NOISE = (-0.012, 0.01, 0.004, -0.003, 0.006)


def lucky(x: float, seed: int = 0) -> dict[str, float]:
    """Planted: 0.9 is truly the best, and 0.5 was lucky in the search. Half of the noise is common to a seed."""
    own = NOISE[(seed + round(10 * x)) % 5]
    return {"accuracy": x + (0.6 if seed == 0 and x == 0.5 else 0.0) + own + NOISE[seed % 5]}


def search(directory: Path, **options: Any) -> Result:
    defaults = {"engine": "local", "workers": 2, "directory": directory, "progress": False, "optimizer": "random",
                "metric": "accuracy", "n_trials": 3, "points_to_evaluate": POINTS, "confirm": True}  # fmt: skip
    return lagom(lucky, SPACE, **{**defaults, **options})


@pytest.mark.e2e
def test_the_confirmed_best_is_not_the_lucky_one_of_the_search(tmp_path: Path) -> None:
    events: list[Event] = []
    result = search(tmp_path, train_best=True, callbacks=[events.append])
    assert result.best_config == {"x": 0.5}
    confirmed = result.confirmed
    assert confirmed is not None
    assert confirmed.is_complete
    assert confirmed.config == {"x": 0.9}
    assert [it.trial.config["x"] for it in confirmed.candidates] == [0.9, 0.5, 0.1]
    assert [[*it.values] for it in confirmed.candidates] == [[1000, 1001, 1002, 1003, 1004], [1000, 1001], [1000, 1001]]
    best = confirmed.best
    assert best is not None
    assert best.mean == pytest.approx(0.9 + 2 * sum(NOISE) / 5)
    assert best.low < best.mean < best.high
    assert {(t.first, t.second): t.differs for t in confirmed.tests} == {(1, 2): True, (1, 0): True, (2, 0): True}
    assert "better than the other 2" in confirmed.sentence
    assert f"confirmed: {confirmed.sentence}" in repr(result)
    assert result.training is not None
    assert result.training.trial.config == {"x": 0.9}
    assert [trial.id for trial in result.trials] == [0, 1, 2]
    created = [event for event in events if isinstance(event, TrialCreated)]
    assert [event.repeat is not None for event in created] == [False] * 3 + [True] * 9 + [False]
    table = confirmed.to_pandas()
    assert list(table["x"]) == [0.9, 0.5, 0.1]
    assert list(table["repeats"]) == [5, 2, 2]


def test_it_is_read_from_the_files_and_is_in_report_and_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = search(tmp_path, engine="inline", workers=1, progress="plain")
    shown = "compared the best 3: 9 trainings with new seeds, trial 2 is recommended"
    assert shown in " ".join(capsys.readouterr().out.split())
    known = load_run(result.directory)
    assert repr(known.confirmed) == repr(result.confirmed)
    assert repr(pickle.loads(pickle.dumps(result)).confirmed) == repr(result.confirmed)
    known.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert ">Confirmation</h2>" in page
    assert result.confirmed is not None
    assert result.confirmed.sentence in page
    assert any("repeats trial 2 with seed 1004" in line for line in result.decision_log())


@pytest.mark.e2e
def test_a_confirmation_that_was_interrupted_is_resumed(tmp_path: Path) -> None:
    ended: list[Event] = []

    def interrupt(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            ended.append(event)
            if len(ended) == 5:
                raise KeyboardInterrupt

    first = search(tmp_path, name="august", callbacks=[interrupt])
    assert first.ending == "interrupted"
    assert first.confirmed is not None
    assert not first.confirmed.is_complete
    assert "so far" in first.confirmed.sentence or "none has ended" in first.confirmed.sentence
    with pytest.raises(
        UserError, match=r"was confirmed with Confirmation\(top=5, repeats=5\), not Confirmation\(top=2"
    ):
        search(tmp_path, name="august", resume=True, confirm=Confirmation(top=2))
    second = search(tmp_path, name="august", resume=True)
    assert second.confirmed is not None
    assert second.confirmed.is_complete
    assert repr(second.confirmed) == repr(search(tmp_path, name="september", engine="inline", workers=1).confirmed)
    third = search(tmp_path, name="august", resume=True)
    assert repr(third.confirmed) == repr(second.confirmed)


def takes_a_seed_only(x: float, seed: int = 0) -> float:
    return float(x > 0.7)


def test_values_that_no_seed_changes_are_not_tested(tmp_path: Path) -> None:
    result = lagom(
        takes_a_seed_only, SPACE, optimizer="random", points_to_evaluate=POINTS, n_trials=3, confirm=True,
        metric="accuracy", engine="inline", workers=1, directory=tmp_path, progress=False,
    )  # fmt: skip
    assert repr(result.confirmed).splitlines()[-1] == (
        "accuracy 1 of trial 2 with 5 seeds, not tested against trials 0, 1, as every seed gave the same difference "
        "(is the seed used?)"
    )
    assert [row.split()[:2] for row in repr(result.confirmed).splitlines()[1:-1]] == [
        ["2", "1"],
        ["0", "0"],
        ["1", "0"],
    ]


def fails_with_another_seed(x: float, seed: int = 0) -> float:
    print(f"x={x} seed={seed}")
    if seed:
        raise ValueError(f"no seed {seed}")
    return x


def test_a_repeat_that_failed_is_found_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = lagom(fails_with_another_seed, {"x": [1, 2]}, optimizer="grid", direction="max", engine="inline",
                   progress=False, name="run", directory=tmp_path, confirm=Confirmation(top=2, repeats=2))  # fmt: skip
    assert result.confirmed is not None
    assert {repeat.id for it in result.confirmed.candidates for repeat in it.repeats} == {2, 3}
    assert "exception in 2 trials, last in trial 3: ValueError: no seed 1000" in repr(result)
    assert not result.failures
    for found in (result, load_run(tmp_path / "run")):
        assert not found.files(3)
        assert found.log(3) == ""  # an inline worker prints to this terminal
        with pytest.raises(UserError, match="one of the 4 trials of this result, got 4"):
            found.load(4)
        with pytest.raises(ValueError, match="no seed 1000"):
            found.rerun(2, fails_with_another_seed)
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run")]) == 0
    *_, error, hint = capsys.readouterr().out.splitlines()
    assert error == "ValueError: no seed 1000"
    assert f"maggy-like rerun {tmp_path / 'run'} 2 " in hint
    assert main(["tail", str(tmp_path / "run"), "3"]) == 0
    result.report(tmp_path / "report.html")
    assert "4 attempts failed or were lost; 2 trials failed in the end" in (tmp_path / "report.html").read_text()


def named_like_columns(mean: float, trial: str, seed: int = 0) -> float:
    return mean + len(trial) + seed % 2


def test_parameters_do_not_replace_columns_of_the_same_name(tmp_path: Path) -> None:
    space = {"mean": [1, 2], "trial": ["a"]}
    result = lagom(named_like_columns, space, optimizer="grid", direction="max", engine="inline", progress=False,
                   directory=tmp_path, confirm=Confirmation(top=2, repeats=2))  # fmt: skip
    assert result.confirmed is not None
    first = result.confirmed.to_pandas().loc[0]
    assert (first["trial"], first["mean"], first["param_trial"], first["param_mean"]) == (1, 3.5, "a", 2)


@pytest.mark.spark
def test_the_workers_of_spark_confirm_and_train(spark_local: SparkSession, tmp_path: Path) -> None:
    result = search(tmp_path, engine="spark", train_best=True)
    confirmed = result.confirmed
    assert confirmed is not None
    assert confirmed.is_complete
    assert confirmed.config == {"x": 0.9}
    assert result.training is not None
    assert result.training.trial.config == {"x": 0.9}
    assert result.training.world_size == 2


def without_seed(x: float) -> float:
    return x


def of_config(config: dict[str, Any]) -> float:
    return float(config["x"]) + float(config.get("seed", 0))


@pytest.mark.parametrize(
    ("function", "space", "options", "message"),
    [
        (without_seed, SPACE, {}, r"without_seed must take a seed, .* add the parameter seed=0"),
        (lucky, {**SPACE, "seed": [1, 2]}, {}, r"must not have 'seed', which confirm= sets; use seed=0 as a default"),
        (lucky, SPACE, {"confirm": 3}, r"confirm must be True, False or a Confirmation, got 3; use Confirmation\(top="),
        (lucky, SPACE, {"confirm": Confirmation}, r"use Confirmation\(\)"),
        (
            lucky,
            SPACE,
            {"metric": ["a", "b"], "direction": ["max", "min"], "optimizer": "random"},
            r"one objective, got a search of 2",
        ),
    ],
)
def test_mistakes(tmp_path: Path, function: Any, space: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lagom(function, space, **{"engine": "local", "confirm": True, "directory": tmp_path, **options})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argument", ["confirm", "train_best"])
def test_a_search_whose_optimizer_changes_configurations_trains_none_again(argument: str, tmp_path: Path) -> None:
    def train(x: float, reporter: Any, seed: int = 0) -> None:
        reporter.checkpoint(reporter.restore())

    with pytest.raises(UserError, match=rf"{argument}=.* and optimizer='pbt' changes configurations during the train"):
        lagom(train, SPACE, optimizer="pbt", engine="local", directory=tmp_path, **{argument: True})


@pytest.mark.parametrize("wrong", [{"top": 0}, {"repeats": 1}, {"repeats": 2.5}])
def test_mistakes_of_the_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"top must|repeats must"):
        Confirmation(**wrong)


@pytest.mark.e2e
def test_a_function_may_take_the_seed_from_config(tmp_path: Path) -> None:
    result = lagom(of_config, SPACE, optimizer="random", n_trials=1, metric="accuracy", engine="inline",
                   progress=False, directory=tmp_path, confirm=Confirmation(top=1, repeats=2))  # fmt: skip
    confirmed = result.confirmed
    assert confirmed is not None
    x = result.trials[0].config["x"]
    assert confirmed.candidates[0].values == {1000: pytest.approx(x + 1000), 1001: pytest.approx(x + 1001)}
    assert confirmed.candidates[0].repeats[0].repeat == Repeat(0, 0, 1, 2)
    assert "it was not compared with others" in confirmed.sentence
