"""What a driver runs on, for the reader of a report: names and versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from maggy_like.version import __version__

PACKAGES = (
    "accelerate",
    "jax",
    "keras",
    "lightgbm",
    "lightning",
    "numpy",
    "optuna",
    "pandas",
    "pyspark",
    "scikit-learn",
    "tensorflow",
    "torch",
    "transformers",
    "xgboost",
)
"""Packages whose versions are recorded where they are installed."""


def environment() -> dict[str, str]:
    """The driver's machine and versions; nothing is imported for it.

    Example:
        >>> environment()["python"]
        '3.11.9'
    """
    known = {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "maggy_like": __version__,
    }
    return known | {package: found for package in PACKAGES if (found := _version(package))}


def _version(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
