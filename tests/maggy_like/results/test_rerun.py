"""A recorded trial is run again in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maggy_like import AblationStudy, FailurePolicy, Float, Reporter, Store, ablate, lagom, load_run
from maggy_like.command_line import main
from maggy_like.errors import SavedStateError, UserError
from maggy_like.results.result import Result
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT

pytestmark = pytest.mark.slow

SCRIPT = """
def train(x, reporter):
    state = reporter.restore() or {"step": 0, "total": 0.0}
    total = state["total"]
    for step in range(state["step"] + 1, reporter.budget + 1):
        total += x * step
        reporter.checkpoint({"step": step, "total": total})
        reporter.report(loss=1.0 / total, step=step)
        if x > 0.5 and step == 3:
            raise ValueError(f"total={total:g}")

def changed(x, reporter):
    for step in range(1, reporter.budget + 1):
        reporter.report(loss=1.0 / (x * step * (step + 1) / 2 + (step > 2)), step=step)

if __name__ == "__main__":
    raise SystemExit("the main guard was entered")
"""


@pytest.fixture
def run(tmp_path: Path) -> tuple[Result, Path]:
    """A run whose trial 0 succeeded and whose trial 1 failed, and the script of its function."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    names: dict[str, object] = {}
    exec(compile(SCRIPT.partition("if __name__")[0], str(script), "exec"), names)
    lagom(
        names["train"],  # type: ignore[arg-type]
        {"x": Float(0, 1)},
        optimizer="random",
        points_to_evaluate=[{"x": 0.25}, {"x": 0.75}],
        n_trials=2,
        max_budget=4,
        engine="inline",
        name="first",
        failures=FailurePolicy(max_attempts=1),
        directory=tmp_path,
        progress=False,
    )
    return load_run(tmp_path / "first"), script


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command; its exit status, and what it wrote to standard output and to standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the directory of the script

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([*map(str, arguments)])
        written = capsys.readouterr()
        return status, written.out, written.err

    return run


def test_a_trial_that_repeats_itself_has_no_difference(run: tuple[Result, Path], command: Command) -> None:
    result, script = run
    status, out, err = command("rerun", script.parent / "first", 0, f"{script}:train")
    assert (err, status) == ("", 0)
    assert out == "trial 0 was run again: 4 reports, 4 values compared, all equal\n"
    assert load_run(script.parent / "first").trials == result.trials  # which the run's directory still has


UNGUARDED = """
from __future__ import annotations
import pickle
from dataclasses import dataclass
from pathlib import Path
from maggy_like import Float, lagom

@dataclass
class Net:
    weight: float

def train(x):
    return pickle.loads(pickle.dumps(Net(x))).weight

searched = lagom(train, {"x": Float(0, 1)}, name="first", directory=Path(__file__).parent, overwrite=True,
                 engine="inline", optimizer="random", n_trials=1, direction="max", progress=False)
Path(__file__).with_suffix(".searched").touch()
"""


def test_a_script_without_a_main_guard_starts_no_search(run: tuple[Result, Path], command: Command) -> None:
    result, script = run
    script.write_text(UNGUARDED)
    status, out, err = command("rerun", script.parent / "first", 0, f"{script}:train")
    assert (status, out, err) == (0, "trial 0 was run again: 0 reports, 0 values compared\n", "")
    assert load_run(script.parent / "first").trials == result.trials
    assert not script.with_suffix(".searched").exists()
    status, _, err = command("rerun", script.parent / "first", 0, f"{script}:test")
    assert status == 1
    assert "would start a second run; move the calls" in err


def test_an_error_of_the_script_has_its_traceback(run: tuple[Result, Path], command: Command) -> None:
    _, script = run
    script.write_text("open('/nope/data.csv')")
    status, _, err = command("rerun", script.parent / "first", 0, f"{script}:train")
    assert status == 1
    assert f'File "{script}", line 1' in err
    assert f"maggy-like: '{script}' raised FileNotFoundError: [Errno 2] No such file or directory" in err
    status, _, err = command("rerun", script.parent / "first", 9, f"{script}:train")
    assert "got 9" in err
    assert "Traceback" not in err


def test_the_first_step_that_differs_is_named(run: tuple[Result, Path], command: Command) -> None:
    _, script = run
    _, out, _ = command("rerun", script.parent / "first", 0, f"{script}:changed")
    assert out == (
        "trial 0 was run again: 4 reports, 3 values compared; the first difference is at step 3: "
        "loss was 0.666667 and is 0.4\n"
    )


def test_a_failure_is_found_under_the_debugger(run: tuple[Result, Path], command: Command) -> None:
    result, script = run
    assert result.trials[1].state is TrialState.FAILED
    typed = [sys.executable, "-m", "maggy_like", "rerun", script.parent / "first", "1", f"{script}:train", "--pdb"]
    done = subprocess.run(typed, input="p (step, total)\nq\n", capture_output=True, text=True, timeout=120)
    assert "ValueError: total=4.5" in done.stderr
    assert "(3, 4.5)" in done.stdout
    assert done.returncode == 0
    status, _, err = command("rerun", script.parent / "first", 1, f"{script}:train")
    assert status == 1
    assert "trial 1 raised ValueError: total=4.5; add --pdb" in err
    _, out, _ = command("show", "first")
    assert "\ntrial 1 failed:\nTraceback (most recent call last)" in out
    *_, error, hint = out.splitlines()
    assert (error, hint) == (
        "ValueError: total=4.5",
        f"to debug it: maggy-like rerun {script.parent / 'first'} 1 {script}:train --pdb",
    )


def test_it_begins_from_the_state_of_the_last_attempt_if_asked(tmp_path: Path) -> None:
    began = []

    def train(x: float, reporter: Reporter) -> None:
        state = reporter.restore() or {"step": 0}
        began.append(state["step"])
        for step in range(state["step"] + 1, reporter.budget + 1):
            reporter.checkpoint({"step": step})
            reporter.report(loss=x / step, step=step)

    options = {"optimizer": "asha", "n_trials": 4, "max_budget": 9, "engine": "inline", "progress": False}
    result = lagom(train, {"x": Float(0, 1)}, directory=tmp_path, **options)
    trial = next(trial for trial in result.trials if trial.attempt > 1)
    recorded = list(began)
    again = result.rerun(trial, train, from_checkpoint=True)
    assert began[len(recorded) :] == [3]
    assert [step for step, _ in again.reports] == list(range(4, trial.budget + 1))
    assert again.difference is None
    first = next(trial for trial in result.trials if trial.attempt == 1)
    with pytest.raises(
        UserError, match=r"needs the state that the last attempt of trial .* began from, got none; omit it"
    ):
        result.rerun(first, train, from_checkpoint=True)


def test_it_begins_from_the_state_of_another_trial_if_asked(tmp_path: Path) -> None:
    def train(x: float, reporter: Reporter) -> None:
        begun, total = reporter.restore() or (0, 0.0)
        for step in range(begun + 1, reporter.budget + 1):
            total += x
            reporter.checkpoint((step, total))
            reporter.report(loss=total / step**2, step=step)

    result = lagom(
        train,
        {"x": Float(0, 1)},
        optimizer=PBT(population=4, interval=2, quantile=0.5),
        n_trials=12,
        max_budget=8,
        engine="inline",
        directory=tmp_path,
        store=Store(keep_checkpoints=100),
        progress=False,
    )
    children = [trial for trial in result.trials if trial.parent is not None and trial.attempt]
    assert {trial.attempt > 1 for trial in children} == {True, False}
    for trial in children:
        again = result.rerun(trial, train, from_checkpoint=True)
        assert again.difference is None
        assert [step for step, _ in again.reports] == [trial.budget - 1, trial.budget]
        assert again.compared == 2
    for state in tmp_path.rglob("*.pkl"):
        state.unlink()
    with pytest.raises(SavedStateError, match="is missing or damaged; leave out from_checkpoint"):
        result.rerun(children[0], train, from_checkpoint=True)


def test_the_training_of_the_best_is_run_again_by_its_number(tmp_path: Path) -> None:
    def train(x: float, reporter: Reporter) -> None:
        for step in range(1, reporter.budget + 1):
            reporter.report(loss=x / step, step=step)

    space = {"x": Float(0, 1)}
    options = {"optimizer": "random", "n_trials": 2, "max_budget": 3, "train_best": 5, "engine": "inline"}
    result = lagom(train, space, directory=tmp_path, progress=False, **options)
    assert str(result.rerun(2, train)) == "trial 2 was run again: 5 reports, 5 values compared, all equal"


def test_the_traceback_ends_with_how_to_debug_it(
    run: tuple[Result, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, script = run
    result.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    command = f"maggy-like rerun {tmp_path / 'first'} 1 {script}:train --pdb"
    assert f"ValueError: total=4.5\nto debug it: {command}</pre>" in page
    search_in_a_notebook(tmp_path / "second", progress="plain")
    said = capsys.readouterr().out.splitlines()
    error = said.index("[trial 0] ZeroDivisionError: x")
    assert said[error + 1] == f"[trial 0] to debug it: load_run('{tmp_path}/second/run').rerun(0, train)"


def search_in_a_notebook(directory: Path, **options: Any) -> Result:
    """Fail the first trial of a function that no file has."""
    names: dict[str, Any] = {}
    code = "def train(x):\n    if x < 0.5:\n        raise ZeroDivisionError('x')\n    return x"
    exec(compile(code, "<ipython-input-1>", "exec"), names)
    names["train"].__module__ = "__main__"
    points = [{"x": 0.25}, {"x": 0.75}]
    space = {"x": Float(0, 1)}
    failures = FailurePolicy(max_attempts=1)
    with_files = {"name": "run", "directory": directory, "engine": "inline", "failures": failures, **options}
    return lagom(names["train"], space, optimizer="random", n_trials=2, points_to_evaluate=points, **with_files)


def test_a_trial_of_an_ablation_has_no_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(seed: int, augment: bool = True) -> float:
        if seed == 0:
            raise ZeroDivisionError("x")
        return seed + augment

    study = AblationStudy().config(augment=False)
    failures = FailurePolicy(max_attempts=1)
    options = {"engine": "inline", "directory": tmp_path, "failures": failures, "progress": "plain"}
    ablate(train, study, repeats=2, direction="max", metric="value", **options)
    said = capsys.readouterr().out
    assert "ZeroDivisionError: x" in said
    assert "to debug it" not in said


def test_a_trial_that_trained_past_the_default_budget_does_so_again(tmp_path: Path) -> None:
    def train(x: float, reporter: Reporter) -> None:
        for step in range(1, 31):
            reporter.report(loss=x / step, step=step)

    space = {"x": Float(0, 1)}
    result = lagom(train, space, optimizer="random", n_trials=1, engine="inline", directory=tmp_path, progress=False)
    assert str(result.rerun(0, train)) == "trial 0 was run again: 30 reports, 30 values compared, all equal"


@pytest.mark.parametrize(
    ("trial", "function", "message"),
    [
        (9, "{}:train", "one of the 2 trials of this result, got 9"),
        (0, "{}:nothing", "has no function 'nothing'"),
        (0, "train", "must be FILE:NAME"),
        (0, "gone.py:train", "there is no file 'gone.py'"),
    ],
)
def test_mistakes_are_answered(
    run: tuple[Result, Path], command: Command, trial: int, function: str, message: str
) -> None:
    _, script = run
    status, _, err = command("rerun", script.parent / "first", trial, function.format(script))
    assert status == 1
    assert message in err
    assert "Traceback" not in err


def test_what_is_not_a_function_is_rejected(run: tuple[Result, Path]) -> None:
    with pytest.raises(UserError, match="train_fn must be a function, got 'train'"):
        run[0].rerun(0, "train")  # type: ignore[arg-type]


@pytest.mark.parametrize("saves", ["before the report", "after the report"])
def test_a_paused_trial_is_run_again_up_to_its_rung_with_the_budget_of_a_full_training(
    saves: str, tmp_path: Path
) -> None:
    def train(x: float, reporter: Reporter) -> None:
        for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
            if saves == "before the report":
                reporter.checkpoint(step)
            reporter.report(loss=x / step, budget=reporter.budget, step=step)
            if saves == "after the report":
                reporter.checkpoint(step, step=step)

    options: dict[str, Any] = {"metric": "loss", "n_trials": 4, "max_budget": 9, "engine": "inline", "progress": False}
    asha = ASHA(mode="promotion", min_budget=3)
    result = lagom(train, {"x": Float(0, 1)}, optimizer=asha, directory=tmp_path, **options)
    paused = next(trial for trial in result.trials if trial.state is TrialState.PAUSED)
    again = result.rerun(paused.id, train)
    assert [step for step, _ in again.reports] == [1, 2, 3]
    assert (again.compared, again.difference) == (6, None)
    assert {metrics["budget"] for _, metrics in again.reports} == {9}
