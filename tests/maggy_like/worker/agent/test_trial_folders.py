"""The directories of a worker's trials belong to the newest attempt of each trial on a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maggy_like.protocol.messages import Assign
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.trial_folders import TrialFolders

LOST = """
import sys
from maggy_like.protocol.messages import Assign
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.trial_folders import TrialFolders

task = WorkerTask("", b"", "", b"", (), (), (), store=f"file://{sys.argv[1]}/checkpoints", logs=f"{sys.argv[1]}/logs")
folders = TrialFolders(task)
folders.begin(Assign(0, 1, {}, 1))
print("begun", flush=True)
sys.stdin.readline()
print(folders.end(0, "a process"), flush=True)
folders.finish()
folders.close()
"""


def test_a_worker_that_was_given_up_leaves_the_directories_to_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    run = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", LOST, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as lost:
        assert lost.stdout is not None
        assert lost.stdout.readline() == "begun\n"
        task = WorkerTask("", b"", "", b"", (), (), (), store=f"file://{run}/checkpoints", logs=f"{run}/logs")
        successor = TrialFolders(task)
        assigned = successor.begin(Assign(0, 2, {}, 1))
        folders = map(os.fsdecode, (assigned.directory, assigned.working_directory))
        written = [Path(folder, "best.pt") for folder in folders]
        for path in written:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("of the second attempt")
        assert lost.communicate("\n", timeout=300)[0] == "False\n"
    assert [path.read_text() for path in written] == ["of the second attempt"] * 2
    assert successor.end(0, "another process")
    successor.finish()
    successor.close()
