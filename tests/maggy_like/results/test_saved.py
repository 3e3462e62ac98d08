"""What is read of a run's files beside its journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maggy_like.results.data import read_log
from maggy_like.storage.log_file import log_name
from maggy_like.storage.run_paths import RunPaths


@pytest.mark.parametrize("copied_first", [True, False])
def test_attempts_of_a_log_stand_in_order_wherever_they_were_written(copied_first: bool, tmp_path: Path) -> None:
    """A worker that does not see the run's folder copies its log to the store."""
    run, store = tmp_path / "run", tmp_path / "store" / "run"
    for time, (folder, attempt) in enumerate(((store, 1), (run, 2)) if copied_first else ((run, 1), (store, 2)), 1):
        path = folder / "logs" / log_name(0, attempt=1 if folder == run else attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"attempt {attempt}\n")
        os.utime(path, (time, time))
    assert read_log(RunPaths(run, store.as_uri()), 0, 0, 2) == "attempt 1\nattempt 2\n"
