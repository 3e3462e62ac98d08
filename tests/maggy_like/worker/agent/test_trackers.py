"""What a trial has left in shared memory is removed by its own resource tracker, however the trial ends."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import train_functions as fns

from maggy_like import FailurePolicy, Float, lagom
from maggy_like.errors import TrialsFailedError
from maggy_like.worker.child.exits import SHARED_MEMORY


@pytest.mark.e2e
@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="needs /dev/shm")
@pytest.mark.parametrize(("how", "timeout"), [("returns", None), ("is killed", None), ("is cut off", 2.0)])
def test_nothing_stays_in_shared_memory(how: str, timeout: float | None, tmp_path: Path) -> None:
    space = {"mark": str(tmp_path / "mark"), "how": how, "x": Float(0, 1)}
    with contextlib.suppress(TrialsFailedError):
        lagom(fns.keep_shared_memory, space, optimizer="random", n_trials=1, workers=1, timeout=timeout, engine="local",
              failures=FailurePolicy(1), directory=tmp_path, progress=False)  # fmt: skip
    assert not (SHARED_MEMORY / (tmp_path / "mark").read_text()).exists()
