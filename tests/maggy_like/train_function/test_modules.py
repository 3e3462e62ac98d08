"""Which installed modules a training function is found to use."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from maggy_like.train_function.modules import modules_of


def trains_with_torch(lr: float) -> None:
    import torch

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def uses_a_global(x: float) -> float:
    return float(np.sqrt(x))


def saves(reporter: Any) -> None:
    reporter.checkpoint(reporter.restore())


def test_modules_are_found_in_the_code_and_among_the_globals() -> None:
    assert "torch" in modules_of(trains_with_torch)
    assert "numpy" in modules_of(uses_a_global)
    assert "fsspec.implementations.local" in modules_of(saves)
    assert "json.encoder" in modules_of(partial(json.JSONEncoder, indent=2))  # where it is from itself
    assert not any(name.startswith(("tests", "test_modules", "__main__")) for name in modules_of(uses_a_global))


PROJECT = {
    "project/__init__.py": "",
    "project/loop.py": """
        import typing
        from .data import rows
        from project import metrics
        if typing.TYPE_CHECKING:
            import keras

        def train(x):
            import lightgbm
            return rows() + metrics.score(x)

        def other():
            import xgboost
    """,
    "project/data.py": "try:\n    import pyarrow.parquet\nexcept ImportError:\n    pass\nrows = list",
    "project/metrics.py": "from sklearn.metrics import r2_score\nimport project.loop\nscore = r2_score",
    "project/broken.py": "import (",
}


def calls_the_project(x: float) -> Any:
    from project import loop

    return loop.train(x)


def calls_a_broken_project(x: float) -> Any:
    import project.broken
    import project.not_there

    return project.broken, project.not_there


def test_modules_are_found_in_the_source_of_the_users_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    found = set(modules_of(calls_the_project))
    assert {"pyarrow.parquet", "sklearn.metrics", "lightgbm"} <= found
    assert found.isdisjoint({"keras", "xgboost", "project", "project.loop"})
    assert set(modules_of(calls_a_broken_project)).isdisjoint(PROJECT)
    assert "project" not in sys.modules  # none of it was run
