"""The lines of a printed result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maggy_like import Float, lagom


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
    assert f"{why}, with name='run', resume=True to go on with it\n" in capsys.readouterr().out
