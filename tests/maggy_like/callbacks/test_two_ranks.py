"""Lightning and transformers in trials of two workers: rank 0 reports, and both stop in the same epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continued import search
from library_functions import with_lightning, with_transformers

from maggy_like import ASHA
from optimizers.core.trial import TrialState
from optimizers.schedulers.stopping import Threshold

pytestmark = [pytest.mark.example, pytest.mark.e2e]

LIBRARIES = [(with_lightning, "val_loss"), (with_transformers, "eval_loss")]
TWO_RANKS = {"engine": "local", "workers": 2, "workers_per_trial": 2}


@pytest.mark.parametrize(("train", "metric"), LIBRARIES)
def test_a_promoted_trial_goes_on_with_both_ranks(train: Any, metric: str, tmp_path: Path) -> None:
    result = search(
        train, {"lr": [0.001, 0.05]}, tmp_path, metric=metric, optimizer=ASHA(eta=2), n_trials=2, max_budget=2,
        points_to_evaluate=[{"lr": 0.001}, {"lr": 0.05}], **TWO_RANKS,
    )  # fmt: skip
    poor, good = result.trials
    assert (poor.state, list(poor.curve.steps)) == (TrialState.PAUSED, [1])
    assert (good.state, good.attempt, list(good.curve.steps)) == (TrialState.COMPLETED, 2, [1, 2])
    assert good.curve.values[1] < good.curve.values[0]


@pytest.mark.parametrize(("train", "metric"), LIBRARIES)
def test_both_ranks_stop_in_the_same_epoch(train: Any, metric: str, tmp_path: Path) -> None:
    rule = Threshold(step=2, worse_than=0.0, direction="min")
    result = search(
        train, {"lr": [0.01]}, tmp_path, metric=metric, optimizer=rule, n_trials=1, max_budget=10_000, **TWO_RANKS
    )
    assert result.counts == {TrialState.STOPPED: 1}
    assert result.trials[0].attempt == 1
