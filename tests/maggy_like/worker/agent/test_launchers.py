"""A launcher that is closed leaves nothing behind, however its fork server ends, and touches nothing else."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cloudpickle
import psutil
import pytest

from maggy_like.protocol.messages import Ready, decode_to_driver
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.worker.agent import children
from maggy_like.worker.agent.children import Child, ForkServerLauncher

PATIENCE = 300.0


@pytest.fixture
def somebody() -> Iterator[subprocess.Popen[bytes]]:
    """A child of the process in which the agent is a guest."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "end", [None, signal.SIGKILL, signal.SIGSTOP], ids=["it leaves", "it is killed", "it must be killed"]
)
def test_what_left_its_session_dies_with_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, somebody: subprocess.Popen[bytes], end: signal.Signals | None
) -> None:
    monkeypatch.setattr(children, "SERVER_PATIENCE", 2.0)
    launcher = ForkServerLauncher(task_that_starts_a_daemon(tmp_path), WorkerContext(0, 0, "host", (b"", b"")))
    child = spawn(launcher)
    trial = psutil.Process(child.pid)
    server, daemon = trial.parent(), psutil.Process(int((tmp_path / "pid").read_text()))
    try:
        assert os.getsid(daemon.pid) == daemon.pid
        if end is not None:
            assert server is not None
            server.send_signal(end)
        launcher.close()
        assert not psutil.wait_procs([trial, daemon], timeout=0)[1]
        assert somebody.poll() is None
    finally:
        with suppress(psutil.NoSuchProcess):
            daemon.kill()
        child.close()


def task_that_starts_a_daemon(folder: Path) -> WorkerTask:
    """Whose function starts a process in a session of its own as it is loaded."""

    def start() -> object:
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (folder / "pid").write_text(str(daemon.pid))
        return abs

    class Starter:
        def __reduce__(self) -> tuple[object, ...]:
            return start, ()

    pickled = cloudpickle.dumps(Starter())
    return WorkerTask("tcp://x:1", b"", "run", pickled, (), tuple(sys.path), (), "", "")


def spawn(launcher: ForkServerLauncher) -> Child:
    """A child that has loaded the function."""
    child = launcher.spawn()
    frame = child.channel.receive()
    assert frame is not None
    assert decode_to_driver(frame) == Ready()
    while child.pid is None:
        assert select.select([launcher.descriptor], [], [], PATIENCE)[0]
        launcher.attend()
    return child
