"""What a trial has left in shared memory is removed by its own resource tracker, however the trial ends."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import train_functions as fns
from wire import wait_for

from maggy_like import FailurePolicy, Float, lagom
from maggy_like.errors import TrialsFailedError
from maggy_like.worker.child.exits import SHARED_MEMORY


@pytest.mark.e2e
@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="needs /dev/shm")
@pytest.mark.parametrize("how", ["returns", "is killed", "is cut off"])
def test_nothing_stays_in_shared_memory(how: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    space = {"mark": str(mark), "how": how, "x": Float(0, 1)}
    handle = lagom(fns.keep_shared_memory, space, optimizer="random", n_trials=1, workers=1, engine="local",
                   failures=FailurePolicy(1), directory=tmp_path, progress=False, block=False)  # fmt: skip
    if how == "is cut off":
        wait_for(lambda: mark.exists() and bool(mark.read_text()))
        handle.stop()
    with contextlib.suppress(TrialsFailedError):
        handle.result()
    assert not (SHARED_MEMORY / mark.read_text()).exists()
