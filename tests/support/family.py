"""The processes that a test, or a script of one, has started."""

from __future__ import annotations

import contextlib

import psutil


def family(pid: int | None = None) -> list[psutil.Process]:
    """All below a process, but for a zygote, which waits for the next search until the process ends."""
    return [process for process in psutil.Process(pid).children(recursive=True) if not is_zygote(process)]


def is_zygote(process: psutil.Process) -> bool:
    """Whether a process is one from which workers are forked."""
    with contextlib.suppress(psutil.Error):
        return "maggy_like.processes.zygote" in process.cmdline()
    return False
