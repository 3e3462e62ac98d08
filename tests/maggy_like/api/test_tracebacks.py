"""The traceback of a failure is printed once, whichever way a run is started, continued and looked at."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gate import Gate
from sklearn.base import BaseEstimator, ClassifierMixin
from thread_host import ThreadHost

import maggy_like
from maggy_like import AblationStudy, FailurePolicy, Float, Integer, Reporter, ablate, lagom, load_run
from maggy_like.command_line import main
from maggy_like.display import notebook
from maggy_like.errors import TrialsFailedError
from maggy_like.sklearn import SearchCV

LINE = 'raise ValueError("the reason")'
SPACE = {"x": Float(0, 1)}


def fail(x: float) -> float:
    raise ValueError("the reason")


def fail_for_any_seed(x: float, seed: int) -> float:
    raise ValueError("the reason")


def fail_for_small(x: float) -> float:
    if x < 0.5:
        raise ValueError("the reason")
    return x


def fail_in_training(x: float, reporter: Reporter) -> None:
    if reporter.budget == 5:
        raise ValueError("the reason")
    reporter.report(score=x, step=1)


class Failing(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    def __init__(self, n: int = 1, least: int = 0) -> None:
        self.n = n
        self.least = least

    def fit(self, x: Any, y: Any) -> Failing:
        if self.n >= self.least:
            raise ValueError("the reason")
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        return np.zeros(len(x), dtype=int)


def search(directory: Path, function: Callable[..., Any] = fail, **options: Any) -> Any:
    common = {"name": "run", "directory": directory, "engine": "inline", "progress": "plain", "optimizer": "random"}
    return lagom(function, SPACE, **common | options)


def search_in_the_background(directory: Path) -> None:
    search(directory, block=False).result()


def search_again(directory: Path) -> None:
    with pytest.raises(TrialsFailedError):
        search(directory, progress=False)
    search(directory, resume=True)


def search_with_failures(directory: Path) -> None:
    points = [{"x": 0.9}, {"x": 0.1}, {"x": 0.2}]
    print(search(directory, fail_for_small, n_trials=3, points_to_evaluate=points, direction="max"))


def search_and_train(directory: Path) -> None:
    search(directory, fail_in_training, n_trials=1, max_budget=1, train_best=5, failures=FailurePolicy(max_attempts=1))


def train_what_was_found(directory: Path) -> None:
    found = search(directory, fail_in_training, n_trials=1, max_budget=1, failures=FailurePolicy(max_attempts=1))
    found.train(budget=5, progress="plain")


def ablation(directory: Path) -> None:
    study = AblationStudy(config={"x": 1.0}).config(x=0.0)
    ablate(
        fail_for_any_seed, study, name="run", directory=directory, engine="inline", progress="plain", direction="max"
    )


def training(directory: Path) -> None:
    options: Any = {"name": "run", "directory": directory, "engine": "inline", "progress": "plain"}
    maggy_like.run(fail, {"x": 0.5}, **options)


def training_in_the_background(directory: Path) -> None:
    options: Any = {"name": "run", "directory": directory, "engine": "inline", "progress": "plain"}
    maggy_like.run(fail, {"x": 0.5}, block=False, **options).result()


def cross_validation(directory: Path, least: int = 0, **options: Any) -> None:
    search = SearchCV(
        Failing(least=least), {"n": Integer(1, 4)}, n_trials=4, cv=2, optimizer="grid", engine="inline",
        directory=directory, progress="plain", **options,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as raised:
        search.fit(np.zeros((8, 1)), np.arange(8) % 2)
    print(*(warning.message for warning in raised))


def cross_validation_that_raises(directory: Path) -> None:
    cross_validation(directory, error_score="raise")


def cross_validation_with_failures(directory: Path) -> None:
    cross_validation(directory, least=3)


STARTS = (
    search,
    search_in_the_background,
    search_again,
    search_with_failures,
    search_and_train,
    train_what_was_found,
    ablation,
    training,
    training_in_the_background,
    cross_validation,
    cross_validation_that_raises,
    cross_validation_with_failures,
)


def printed(start: Callable[[Path], Any], directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a run prints, and what Python prints of the error that it raises."""
    error = ""
    try:
        start(directory)
    except Exception as raised:
        error = str(raised)
    said = capsys.readouterr()
    return f"{said.out}{said.err}{error}"


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_a_run_that_fails_prints_it_once(
    start: Callable[[Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(start, tmp_path, capsys).count(LINE) == 1


@pytest.mark.parametrize("command", ["show", "watch", "watch --plain"])
@pytest.mark.parametrize(
    "start", [search, search_with_failures, search_and_train, ablation, training], ids=lambda start: start.__name__
)
def test_a_command_about_a_run_prints_it_once(
    start: Callable[[Path], Any], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(start, tmp_path, capsys)
    name, *options = command.split()
    assert main([name, str(tmp_path / "run"), *options]) == 0
    assert capsys.readouterr().out.count(LINE) == 1


def test_a_rerun_prints_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(search, tmp_path, capsys)
    assert main(["rerun", str(tmp_path / "run"), "0", f"{__file__}:fail"]) == 1
    assert "".join(capsys.readouterr()).count(LINE) == 1


def test_an_error_in_a_notebook_has_what_the_folded_log_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "display", lambda *_, **__: None)
    with pytest.raises(TrialsFailedError) as caught:
        search(tmp_path, progress="notebook")
    assert f"{caught.value}{capsys.readouterr()}".count(LINE) == 1


@pytest.mark.e2e
def test_a_script_on_workers_prints_it_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"def fail():\n    {LINE}\n\nfail()\n")
    assert main(["run", "--workers", "1", "--directory", str(tmp_path), "--name", "run", str(script)]) == 1
    assert "".join(capfd.readouterr()).count(LINE) == 1
    assert main(["show", str(tmp_path / "run")]) == 0
    assert capfd.readouterr().out.count(LINE) == 1


@pytest.mark.e2e
@pytest.mark.parametrize("progress", [pytest.param("plain", marks=pytest.mark.long), False])
def test_a_watcher_of_a_driver_elsewhere_prints_it_once(
    progress: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, gate, raised = threading.Event(), Gate(tmp_path / "gate"), list[Exception]()
    path = gate.path

    def fail_past_gate(x: float) -> float:
        with open(path):
            raise ValueError("the reason")

    def client() -> None:
        options: dict[str, Any] = {"driver": "cluster", "engine": ThreadHost(), "callbacks": [lambda _: begun.set()]}
        try:
            search(tmp_path, fail_past_gate, progress=False, **options)
        except TrialsFailedError as error:
            raised.append(error)

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    assert begun.wait(60)
    with pytest.raises(TrialsFailedError) as caught:
        load_run(tmp_path / "run").watch(progress=progress, callbacks=[lambda _: gate.open()])
    thread.join(60)
    assert f"{capsys.readouterr().out}{caught.value}".count(LINE) == 1
    assert str(raised[0]).count(LINE) == 1
