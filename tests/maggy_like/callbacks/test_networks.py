"""Lightning, Keras and transformers in searches: trials stop, and promoted ones go on from their epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continued import check_promoted_trials_equal_whole_trainings, search
from library_functions import with_keras, with_lightning, with_transformers

from maggy_like import Float
from optimizers.core.trial import TrialState
from optimizers.schedulers.stopping import Threshold

pytestmark = [pytest.mark.example, pytest.mark.filterwarnings("default")]  # the libraries warn of each other

LIBRARIES = [
    (with_lightning, "val_loss"),
    (with_keras, "val_loss"),
    (with_transformers, "eval_loss"),
]
SPACE = {"lr": Float(0.001, 0.3, log=True)}


@pytest.mark.parametrize(("train", "metric"), LIBRARIES)
def test_a_promoted_trial_goes_on_as_if_it_had_never_paused(train: Any, metric: str, tmp_path: Path) -> None:
    best = check_promoted_trials_equal_whole_trainings(train, SPACE, tmp_path, metric=metric, tolerance=1e-5)
    assert best.value < 2.0  # 2.3 by chance


@pytest.mark.parametrize(("train", "metric"), LIBRARIES)
def test_a_trial_that_is_told_to_stop_stops(train: Any, metric: str, tmp_path: Path) -> None:
    rule = Threshold(step=2, worse_than=0.0, direction="min")
    result = search(train, SPACE, tmp_path, metric=metric, optimizer=rule, n_trials=1, max_budget=10_000)
    assert result.counts == {TrialState.STOPPED: 1}
