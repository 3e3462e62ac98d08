"""The lines of a printed result."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand import Hand

from maggy_like import Float, Reporter, lagom, load_run
from maggy_like.driver.state_machine.interface import WorkerLost
from maggy_like.errors import TrialsFailedError
from maggy_like.protocol.endings import Ending
from maggy_like.results.record import Attempt, Clock, read_attempts
from optimizers.core.trial import TrialState


@pytest.mark.parametrize(("n_trials", "counted"), [(3, "3 trials (2 completed, 1 failed)"), (1, "1 trial (1 failed)")])
def test_the_states_of_trials_are_counted_in_the_order_of_the_display(
    tmp_path: Path, n_trials: int, counted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(x: float, reporter: Any) -> float:
        if reporter.trial == 0:
            raise ValueError("x")
        return x

    result = lagom(
        train, {"x": Float(0, 1)}, optimizer="random", n_trials=n_trials, engine="inline", directory=tmp_path,
        progress="plain",
    )  # fmt: skip
    assert repr(result).splitlines()[0].endswith(f": {counted}")
    assert f", {counted}\n" in capsys.readouterr().out


def score(x: float, reporter: Reporter) -> None:
    reporter.report(accuracy=x, step=1)


def score_both(x: float) -> dict[str, float]:
    return {"accuracy": x, "loss": x}


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("progress", ["plain", "terminal", False])
def test_a_printed_result_does_not_repeat_what_the_display_has_just_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: Any, block: bool
) -> None:
    found: Any = lagom(
        score, {"x": [0.25, 0.5, 1.0]}, optimizer="grid", metric="accuracy", engine="inline", directory=tmp_path,
        progress=progress, name="run", block=block,
    )  # fmt: skip
    result = found if block else found.result()
    print(result)
    shown = capsys.readouterr().out
    assert shown.count("best accuracy 1 at step 1") == shown.count("3 trials (3 completed)") == 1
    table = (
        "trial  state      accuracy  step  configuration\n"
        "    2  completed         1     1  x=1\n"
        "    1  completed       0.5     1  x=0.5\n"
        "    0  completed      0.25     1  x=0.25\n"
    )
    assert shown.endswith(table)
    whole = f"{result!r}\n\n{table}"
    assert shown == whole or progress
    for again in (load_run(tmp_path / "run"), pickle.loads(pickle.dumps(result))):
        print(again)
        assert capsys.readouterr().out == whole
    assert ("<pre>" in result._repr_html_()) is (not progress)


def test_a_printed_result_of_several_objectives_is_the_pareto_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"metric": ["accuracy", "loss"], "direction": ["max", "min"], "optimizer": "random", "n_trials": 2}
    shown, hidden = (
        lagom(score_both, {"x": Float(0, 1)}, engine="inline", directory=tmp_path, progress=progress, **options)
        for progress in ("plain", False)
    )
    assert str(hidden) == repr(hidden)
    assert str(shown).splitlines() == repr(hidden).splitlines()[1:-1]
    assert "Pareto set of 2 (max accuracy, min loss)" in str(shown)


def test_values_that_are_not_finite_come_last(tmp_path: Path) -> None:
    def train(x: float) -> dict[str, float]:
        return {"loss": math.log(x) if x else -math.inf}

    options: Any = {"metric": "loss", "engine": "inline", "directory": tmp_path, "progress": False}
    result = lagom(train, {"x": [0.0, 1.0, 2.0]}, optimizer="grid", **options)
    assert [line.split()[0] for line in str(result).splitlines()[-3:]] == ["1", "2", "0"]


def test_what_ended_without_trials_is_printed_whole(tmp_path: Path) -> None:
    options: Any = {"timeout": 1e-9, "direction": "max", "engine": "inline", "directory": tmp_path}
    result = lagom(lambda x: x, {"x": Float(0, 1)}, progress="plain", **options)
    assert str(result) == repr(result)


@pytest.mark.parametrize("progress", ["plain", "terminal", False])
def test_the_traceback_of_a_search_that_fails_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: Any
) -> None:
    def fail(x: float) -> None:
        raise ValueError("the reason")

    with pytest.raises(TrialsFailedError, match=r"failed identically.*the reason") as caught:
        lagom(fail, {"x": Float(0, 1)}, engine="inline", directory=tmp_path, progress=progress)
    assert f"{capsys.readouterr().out}{caught.value}".count("Traceback (most recent call last)") == 1
    assert str(caught.value).endswith("for failures of this type.")
    assert "Traceback" in str(pickle.loads(pickle.dumps(caught.value)))


def test_a_timeout_that_the_start_has_used_up_is_the_reason_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = lagom(
        lambda x: x, {"x": Float(0, 1)}, timeout=1e-9, direction="max", engine="inline", directory=tmp_path,
        name="run", progress="plain",
    )  # fmt: skip
    why = "no trial began, since the start took all of the timeout; pass a longer timeout"
    assert why in repr(result).splitlines()
    assert f"{why}, with name='run', resume=True to continue it\n" in capsys.readouterr().out


def test_a_timeout_before_the_first_value_is_the_reason_that_is_printed(tmp_path: Path) -> None:
    def train(x: float) -> float:
        raise ValueError("x")

    result = lagom(
        train, {"x": Float(0, 1)}, optimizer="random", n_trials=1, engine="inline", directory=tmp_path, progress=False
    )
    assert "no trial has a value" in repr(result).splitlines()
    late = replace(result, ending=Ending.TIMEOUT)
    assert "no trial reported a value before the timeout; pass a longer timeout" in repr(late).splitlines()


@pytest.mark.parametrize(
    ("values", "saves", "states"),
    [
        ((1, 3, 2), True, ["best checkpoint, at step 2", "last checkpoint, at step 3"]),
        ((1, 2, 3), True, ["best and last checkpoint, at step 3"]),
        ((1, 3, 2), False, ["no checkpoint was saved"]),
    ],
)
def test_a_training_names_each_state_with_its_own_step(
    tmp_path: Path, values: tuple[int, ...], saves: bool, states: list[str]
) -> None:
    def train(x: float, reporter: Reporter) -> None:
        for step, value in enumerate(values, 1):
            if saves:
                reporter.checkpoint(step)
            reporter.report(accuracy=value, step=step)

    result = lagom(
        train, {"x": Float(0, 1)}, optimizer="random", n_trials=1, max_budget=3, train_best=True, engine="inline",
        directory=tmp_path, progress=False,
    )  # fmt: skip
    training = result.training
    assert training is not None
    first, *shown, files = repr(training).splitlines()
    assert first.endswith(f"accuracy 3 at step {values.index(3) + 1}")
    assert files.startswith("files: ")
    assert [line.partition(": ")[0] for line in shown] == states
    if saves:
        assert shown[-1].endswith(f": {training.checkpoint}")
        assert shown[0].endswith(f": {training.best_checkpoint}")
        assert training.load(best=True) == values.index(3) + 1
        assert training.load() == 3


# -- who ran what when -------------------------------------------------------------------------------


def test_an_attempt_has_its_worker_its_time_and_its_steps() -> None:
    hand = Hand(n_trials=1, workers=1).start()
    worker = hand.join(0)
    hand.report(worker, 1, 0.5)
    hand.now = 2.0
    hand.tell(WorkerLost(worker, "killed"))
    second = hand.join(0, 1)
    hand.now = 5.0
    hand.finish(second, 0.7)
    first, again = read_attempts(hand.events, Clock([(0.0, 5.0)]))
    assert first.failure is not None
    assert first == Attempt(0, 1, (0,), 0.0, 2.0, TrialState.PENDING, (0, 1), first.failure)
    assert again == Attempt(0, 2, (0,), 2.0, 5.0, TrialState.COMPLETED, (1, 9))


def test_an_attempt_of_several_workers_names_all_of_them() -> None:
    hand = Hand(n_trials=1, workers_per_trial=2).start()
    hand.join(1)
    hand.join(0)
    (attempt,) = read_attempts(hand.events, Clock([(0.0, 1.0)]))
    assert sorted(attempt.workers) == [0, 1]
    assert (attempt.state, attempt.end) == (TrialState.RUNNING, 1.0)


def test_time_without_a_driver_does_not_count() -> None:
    clock = Clock([(100.0, 110.0), (500.0, 520.0)])
    assert [clock(time) for time in (90.0, 100.0, 105.0, 300.0, 500.0, 515.0, 900.0)] == [0, 0, 5, 10, 10, 25, 30]
    assert clock.seams == [10.0]
    assert clock.total == 30.0
