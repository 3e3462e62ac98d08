"""What a process that has ended may have left on this machine."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.platforms.networks import PREFIX

MARK = "MAGGY_LIKE_PLATFORM"
"""In the environment of every process of a setting: its own value."""

PATIENCE = 5.0
"""Seconds that processes get to be gone."""


class Leftovers:
    """What is on the machine before a setting; what there is beside it afterwards was left.

    Args:
        mark: The setting's value of :data:`MARK`.
        folder: All its files.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        self._mark, self._folder = mark, folder
        self._namespaces, self._shared = namespaces(), shared_memory()

    def found(self) -> list[str]:
        """What was left; processes and namespaces are removed."""
        until = time.monotonic() + PATIENCE
        while (processes := self._processes()) and time.monotonic() < until:
            psutil.wait_procs(processes, timeout=0.2)
        found = [f"process {process.pid} {command(process)}" for process in processes]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for name in sorted(namespaces() - self._namespaces):
            subprocess.run(["ip", "netns", "del", name], check=True)
            found.append(f"namespace {name}")
        found += [f"/dev/shm/{name}" for name in sorted(shared_memory() - self._shared)]
        found += [f"lock {path}" for path in self._folder.rglob("journal.lock") if path.stat().st_size]
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


def namespaces() -> set[str]:
    """The network namespaces of this benchmark."""
    if shutil.which("ip") is None:
        return set()
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return {line.split()[0] for line in done.stdout.splitlines() if line.startswith(PREFIX)}


def shared_memory() -> set[str]:
    """The names in ``/dev/shm``."""
    return {path.name for path in Path("/dev/shm").iterdir()} if sys.platform == "linux" else set()
