"""What TensorBoard reads of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maggy_like import AblationStudy, Choice, Float, ablate, lagom, run
from maggy_like.errors import ConfigError
from maggy_like.trackers import TensorBoard

pytest.importorskip("tensorboard")


def train(lr: float, act: str, reporter: Any) -> dict[str, float]:
    for step in range(1, reporter.budget + 1):
        reporter.report(score=lr * step, step=step)
    return {"score": lr * reporter.budget, "size": 7.0}


def search(directory: Path, callback: Any, **options: Any) -> Any:
    space = {"lr": Float(0, 1), "act": Choice(["relu", "gelu"])}
    given = {"optimizer": "random", "n_trials": 2, "max_budget": 3, "engine": "inline", "name": "run", **options}
    return lagom(train, space, directory=directory, callbacks=[callback], progress=False, **given)


def read(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory))
    found.Reload()
    return found


def test_curves_and_hyperparameters_are_there_after_a_resume_too(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    search(tmp_path, "tensorboard")
    result = search(tmp_path, "tensorboard", n_trials=3, resume=True)
    directory = tmp_path / "run" / "tensorboard"
    assert sorted(path.name for path in directory.iterdir()) == ["trial-00000", "trial-00001", "trial-00002"]
    for trial in result.trials:
        found = read(directory / f"trial-{trial.id:05d}")
        curve = [(it.step, it.value) for it in found.Scalars("score")]
        assert curve == [(step, pytest.approx(trial.config["lr"] * step)) for step in (1, 2, 3)]
        assert [(it.step, it.value) for it in found.Scalars("size")] == [(3, 7.0)]
        content = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        begun = HParamsPluginData.FromString(content).session_start_info.hparams
        assert begun["lr"].number_value == trial.config["lr"]
        assert begun["act"].string_value == trial.config["act"]
        ended = found.summary_metadata["_hparams_/session_end_info"].plugin_data.content
        assert HParamsPluginData.FromString(ended).session_end_info.status == 1  # success


def test_the_directory_is_one_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got s3://bucket/logs; use TensorBoard\(logdir=PATH\)"):
        search(tmp_path, TensorBoard(logdir="s3://bucket/logs"))
    search(tmp_path, TensorBoard(logdir=tmp_path / "logs"))
    assert (tmp_path / "logs" / "run" / "trial-00000").is_dir()


def test_runs_of_one_name_in_several_directories_have_curves_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = TensorBoard(logdir=tmp_path / "curves")
    for directory, options in (("a", {"n_trials": 2}), ("b", {"n_trials": 1}), ("a", {"n_trials": 3, "resume": True})):
        (tmp_path / directory).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / directory)
        search(Path("runs"), curves, **options)
    trials = {it.name: len(list(it.glob("trial-*/*"))) for it in (tmp_path / "curves").iterdir()}
    assert trials == {"run": 3, "run-2": 1}


def job(reporter: Any) -> int:
    reporter.report(loss=0.5, step=1)
    return 3


def depends(dropout: bool, seed: int, reporter: Any) -> None:
    reporter.report(score=0.5 if dropout else 0.25, step=1)


def test_run_and_ablate_take_trackers_too(tmp_path: Path) -> None:
    common: dict[str, Any] = {"directory": tmp_path, "callbacks": ["tensorboard"], "progress": False}
    assert run(job, workers=1, engine="inline", name="job", **common) == 3
    (directory,) = (tmp_path / "job" / "tensorboard").iterdir()
    assert [(it.step, it.value) for it in read(directory).Scalars("loss")] == [(1, 0.5)]

    study = AblationStudy(config={"dropout": True}).config(dropout=False)
    answer = ablate(depends, study, repeats=2, engine="inline", name="study", max_budget=1, **common)
    directories = sorted((tmp_path / "study" / "tensorboard").iterdir())
    assert len(directories) == len(answer.result.trials) == 4
    assert [(it.step, it.value) for it in read(directories[0]).Scalars("score")] == [(1, 0.5)]
