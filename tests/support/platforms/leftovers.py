"""What a process that has ended may have left on this machine."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

MARK = "MAGGY_LIKE_PLATFORM"
"""In the environment of every process of a setting: its own value."""


def namespace_prefix(mark: str) -> str:
    """What the names of a setting's network namespaces begin with; an interface's name has 15 characters at most."""
    return f"mgp{mark[:6]}"


PATIENCE = 5.0
"""Seconds that processes get to be gone."""


class Leftovers:
    """What is on the machine before a setting; what there is beside it afterwards was left.

    Args:
        mark: The setting's value of :data:`MARK`.
        directory: All its files.
    """

    def __init__(self, mark: str, directory: Path) -> None:
        self._mark, self._directory = mark, directory
        self._shared = shared_memory()

    def found(self) -> list[str]:
        """What was left; processes and namespaces are removed."""
        until = time.monotonic() + PATIENCE
        while (processes := self._processes()) and (left := until - time.monotonic()) > 0:
            psutil.wait_procs(processes, timeout=left)
        found = [f"process {process.pid} {command(process)}" for process in processes]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for name in namespaces(namespace_prefix(self._mark)):
            subprocess.run(["ip", "netns", "del", name], check=True)
            found.append(f"namespace {name}")
        found += [f"/dev/shm/{name}" for name in sorted(shared_memory() - self._shared)]
        found += [f"lock {path}" for path in self._directory.rglob("journal.lock") if path.stat().st_size]
        return found

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def command(process: psutil.Process) -> str:
    """How it was started, in short."""
    try:
        return " ".join(process.cmdline())[:100]
    except psutil.Error:
        return ""


def namespaces(prefix: str) -> list[str]:
    """The network namespaces whose names begin so."""
    if shutil.which("ip") is None:
        return []
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return [line.split()[0] for line in done.stdout.splitlines() if line.startswith(prefix)]


def shared_memory() -> set[str]:
    """The names in ``/dev/shm``."""
    return {path.name for path in Path("/dev/shm").iterdir()} if sys.platform == "linux" else set()
