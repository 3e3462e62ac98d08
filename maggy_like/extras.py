"""Packages that only parts of this one need: what to install where one is missing."""

from __future__ import annotations

import importlib.util

from maggy_like.errors import UserError

EXTRAS = {
    "keras": "keras",
    "lightgbm": "lightgbm",
    "lightning": "lightning",
    "mlflow": "mlflow",
    "optuna": "optuna",
    "pandas": "pandas",
    "plotly": "report",
    "pyarrow": "ml",
    "pyspark": "spark",
    "tensorboard": "tensorboard",
    "torch": "torch",
    "transformers": "transformers",
    "xgboost": "xgboost",
}
"""The extra of maggy_like that brings each package."""


def require(package: str, purpose: str) -> None:
    """Check that a package of an extra is installed.

    Args:
        package: The name by which it is imported.
        purpose: What needs it.

    Raises:
        UserError: It is missing.
    """
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{purpose} needs {package}; install it with: pip install 'maggy_like[{EXTRAS[package]}]'")
