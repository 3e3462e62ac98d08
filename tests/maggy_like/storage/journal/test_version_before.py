"""A journal that the version before wrote: ``before`` is read and resumed, and is never written anew."""

from __future__ import annotations

import shutil
from pathlib import Path

from maggy_like import Float, Reporter, lagom, load_run
from optimizers.core.trial import FailureKind

BEFORE = Path(__file__).parent / "before"


def test_a_run_of_the_version_before_is_read_and_resumed(tmp_path: Path) -> None:
    shutil.copytree(BEFORE, tmp_path / "before")
    result = load_run(tmp_path / "before")
    assert result.best_value == 0.125
    assert [(trial.attempt, trial.stage_losses) for trial in result.trials] == [(2, 1), (1, 1)]
    assert result.trials[1].failure.kind is FailureKind.STAGE_LOST

    def train(x: float, reporter: Reporter) -> None:
        for step in (1, 2, 3):
            reporter.report(loss=0.5 / step, step=step)

    space = {"x": Float(0.0, 1.0)}
    options = {"optimizer": "random", "metric": "loss", "direction": "min", "max_budget": 3, "seed": 1}
    found = lagom(
        train,
        space,
        n_trials=2,
        directory=tmp_path,
        name="before",
        engine="inline",
        resume=True,
        progress=False,
        **options,
    )
    assert [(trial.state, trial.attempt) for trial in found.trials] == [("completed", 2), ("completed", 2)]
