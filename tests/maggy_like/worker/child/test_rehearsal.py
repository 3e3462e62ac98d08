from __future__ import annotations

import threading
from pathlib import Path

import pytest

from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.child.process import rehearse


@pytest.mark.parametrize("returns_anything", [False, True])
def test_a_rehearsal_prints_nothing_saves_nothing_and_leaves_no_thread(
    returns_anything: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path.as_uri()
    task = WorkerTask("tcp://x:1", b"", "run", b"", (), (), (), store, store, returns_anything=returns_anything)
    threads = threading.active_count()
    rehearse(task)
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
