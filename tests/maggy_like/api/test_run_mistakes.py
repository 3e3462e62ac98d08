"""Wrong use of ``run`` is an error before anything starts, which names the value and the remedy."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maggy_like import FailurePolicy, run
from maggy_like.errors import EngineError, UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": [1]}, r"config must be a dict of arguments by name, got \[1\]"),
        ({"config": {"x": [{1}]}}, r"config\['x'\] must be .*, got \[\{1\}\] of type list; use functools.partial"),
        ({"config": {"x": math.nan}}, r"config\['x'\] must be finite for the journal, got nan; use a finite number"),
        ({"config": {"x": np.arange(2)}}, r"config\['x'\] must be a number, .* got .* of type ndarray"),
        ({"config": {"x": 1, "y": 1}}, r"no parameter 'y', which config sets"),
        ({"config": {}}, r"nothing fills the parameter 'x'.*add it to config \(which has nothing\)"),
        (
            {"engine": "inline", "workers": None, "failures": FailurePolicy(min_workers=2)},
            "engine='inline' has 1 worker by default; use engine=",
        ),
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"failures": FailurePolicy(min_workers=3)}, "min_workers=3 is more than workers=2; pass 2 or fewer"),
        ({"budget": 0}, "budget must be a whole number of at least 1, got 0"),
        ({"callbacks": [3]}, "callbacks must be functions of one event, got 3"),
        ({"engine": "inline"}, "workers=2 but engine='inline' has 1 slot;"),
    ],
)
def test_a_mistake_is_an_error_and_nothing_starts(tmp_path: Path, arguments: Any, message: str) -> None:
    with pytest.raises((UserError, EngineError), match=message):
        run(
            lambda x: x,
            **{"config": {"x": 1}, "engine": "local", "workers": 2, "directory": tmp_path / "runs", **arguments},
        )
    assert not (tmp_path / "runs").exists()


def test_a_missing_torch_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"on 2 workers together needs torch; install it with: pip install 'maggy_like\[torch\]'"
    with pytest.raises(UserError, match=message):
        run(lambda: 1, workers=2, engine="local", directory=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
