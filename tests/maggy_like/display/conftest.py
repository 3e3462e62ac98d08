from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maggy_like.display import Snapshot, WorkerLine
from maggy_like.protocol.endings import Phase
from optimizers.core.trial import TrialState


@pytest.fixture
def snap() -> Callable[..., Snapshot]:
    """A snapshot of a search in its middle; keyword arguments replace fields."""

    def make(**fields: Any) -> Snapshot:
        middle: dict[str, Any] = {
            "name": "digits",
            "directory": "runs/digits-1",
            "optimizer": "asha",
            "direction": "max",
            "phase": Phase.SEARCHING,
            "elapsed": 30.0,
            "objective": "accuracy",
            "n_trials": 30,
            "counts": {
                TrialState.RUNNING: 3,
                TrialState.COMPLETED: 4,
                TrialState.STOPPED: 1,
                TrialState.PAUSED: 6,
                TrialState.FAILED: 1,
            },
            "best_trial": 4,
            "best_value": 0.973,
            "best_config": {"lr": 0.01, "act": "<relu>"},
            "workers": (WorkerLine(0, "a", "busy", 7, 3, 9, 0.91, 12.0), WorkerLine(1, "a", "idle")),
        }
        return Snapshot(**{**middle, **fields})

    return make
