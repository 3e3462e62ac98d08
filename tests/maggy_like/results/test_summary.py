"""The lines of a printed result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from maggy_like import Float, Reporter, lagom
from maggy_like.protocol.endings import Ending


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
        ((1, 3, 2), True, ["best state, at step 2", "last state, at step 3"]),
        ((1, 2, 3), True, ["best and last state, at step 3"]),
        ((1, 3, 2), False, ["no state was saved"]),
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
