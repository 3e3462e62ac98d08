"""Trackers, which record a run elsewhere in addition to its own files.

from maggy_like.trackers import MLflow, TensorBoard

lagom(train_fn, space, callbacks=[MLflow(experiment="digits"), TensorBoard()])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maggy_like.trackers.base import Tracker

if TYPE_CHECKING:
    from maggy_like.trackers.mlflow import MLflow
    from maggy_like.trackers.tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard", "Tracker"]

_HOMES = {"MLflow": "maggy_like.trackers.mlflow", "TensorBoard": "maggy_like.trackers.tensorboard"}


def __getattr__(name: str) -> Any:
    """Load a tracker on first use, so that a search without trackers does not pay for them."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
