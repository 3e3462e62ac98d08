"""Trackers: what a run records elsewhere, beside its own files.

from maggy_like.trackers import MLflow, TensorBoard

lagom(train_fn, space, callbacks=[MLflow(experiment="digits"), TensorBoard()])
"""

from __future__ import annotations

from maggy_like.trackers.base import Tracker
from maggy_like.trackers.mlflow import MLflow
from maggy_like.trackers.tensorboard import TensorBoard

__all__ = ["MLflow", "TensorBoard", "Tracker"]
