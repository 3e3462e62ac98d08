"""Callbacks of training libraries: each reports the steps of training, stops it, and saves and restores its state.

    from maggy_like.callbacks import LightGBMReport

    def train(lr, reporter):
        report = LightGBMReport(reporter)
        lightgbm.train(
            {"learning_rate": lr, "metric": "auc", "objective": "binary"}, data, report.num_boost_round,
            valid_sets=[held_out], valid_names=["valid"], init_model=report.init_model, callbacks=[report],
        )

A library is imported when its callback is first used. ``from maggy_like.callbacks import *`` imports all callbacks
whose libraries are installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maggy_like.errors import UserError

if TYPE_CHECKING:
    from maggy_like.callbacks.keras import KerasReport
    from maggy_like.callbacks.lightgbm import LightGBMReport
    from maggy_like.callbacks.lightning import LightningReport
    from maggy_like.callbacks.sklearn import sklearn_steps
    from maggy_like.callbacks.transformers import TransformersReport
    from maggy_like.callbacks.xgboost import XGBoostReport

    __all__ = [
        "KerasReport",
        "LightGBMReport",
        "LightningReport",
        "TransformersReport",
        "XGBoostReport",
        "sklearn_steps",
    ]

_HOMES = {
    "KerasReport": "maggy_like.callbacks.keras",
    "LightGBMReport": "maggy_like.callbacks.lightgbm",
    "LightningReport": "maggy_like.callbacks.lightning",
    "TransformersReport": "maggy_like.callbacks.transformers",
    "XGBoostReport": "maggy_like.callbacks.xgboost",
    "sklearn_steps": "maggy_like.callbacks.sklearn",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # read by a star import, which fails for a name that raises
        return [each for each in _HOMES if _is_installed(each)]
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'maggy_like.callbacks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def _is_installed(name: str) -> bool:
    """Whether a callback's library and its requirements are installed."""
    try:
        importlib.import_module(_HOMES[name])
    except UserError:
        return False
    return True
