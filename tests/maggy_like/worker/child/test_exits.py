"""What a trial has started and not ended: its pools are closed, and nothing of them stays in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maggy_like.worker.child import exits

SCRIPT = """
import os, pathlib, signal, time
from concurrent.futures import ThreadPoolExecutor

from joblib import Parallel, delayed

from maggy_like import FailurePolicy, Float, lagom

def wait_for(file, text):
    while not file.exists():
        time.sleep(0.01)
    print(text, flush=True)

def train(x):
    print(os.getpid())
    Parallel(n_jobs=2)(delayed(abs)(number) for number in range(4))
    if x > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    ThreadPoolExecutor().submit(wait_for, pathlib.Path("returned"), "written behind the trial's back")
    pathlib.Path("returned").touch()
    return x

if __name__ == "__main__":
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", points_to_evaluate=[{"x": 0.1}, {"x": 0.9}],
                   n_trials=2, workers=1, engine="local", failures=FailurePolicy(1), progress=False)
    print(result.log(0) + result.log(1))
"""


@pytest.mark.e2e
@pytest.mark.skipif(not exits.SHARED_MEMORY.exists(), reason="needs /dev/shm")
def test_joblib_leaves_nothing_in_shared_memory_whether_its_trial_returns_or_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    first, *rest, second = done.stdout.splitlines()[:-1]
    assert sorted(rest) == [exits.POOL_HINT, "written behind the trial's back"]  # the hint once, in the first trial
    left = {path.name for path in exits.SHARED_MEMORY.iterdir()}
    assert first.isdigit()
    assert second.isdigit()
    assert not [name for name in left if f"-{first}-" in name or f"-{second}-" in name or f"_{second}_" in name]


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "SHARED_MEMORY", tmp_path)
    for name in ("sem.loky-12-a", "sem.loky-123-a", "sem.mp-12", "torch_12"):
        (tmp_path / name).touch()
    (tmp_path / "joblib_memmapping_folder_12_x").mkdir()
    (tmp_path / "joblib_memmapping_folder_12_x" / "data").touch()
    listed = [f"sem.loky-12-{n}" for n in range(5)] + os.listdir(tmp_path)  # others are just removing theirs too
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda folder: listed)
        exits.remove_leftovers(12)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sem.loky-123-a", "sem.mp-12", "torch_12"]
