"""The processes that a test, or a script of one, has started."""

from __future__ import annotations

import contextlib

import psutil


def family(pid: int | None = None) -> list[psutil.Process]:
    """All below a process, but for a zygote, which waits for the next search until the process ends."""
    return [process for process in psutil.Process(pid).children(recursive=True) if not is_zygote(process)]


def agents() -> list[psutil.Process]:
    """The agents that this process has started, oldest first."""
    found = [process for process in psutil.Process().children() if runs(process, "maggy_like.worker")]
    return sorted(found, key=lambda process: process.create_time())


def is_zygote(process: psutil.Process) -> bool:
    """Whether a process is one from which workers are forked."""
    return runs(process, "maggy_like.processes.zygote")


def runs(process: psutil.Process, module: str) -> bool:
    """Whether a process was started as ``python -m MODULE``; no longer, once it has ended."""
    with contextlib.suppress(psutil.Error):  # also of one that ended and that nobody has waited for
        return module in process.cmdline()
    return False
