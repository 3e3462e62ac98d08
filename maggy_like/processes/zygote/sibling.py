"""Forks whose parent is the parent of the process that forks: who asked for one waits for it as for any child."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys

SYS_CLONE = {"x86_64": 56, "aarch64": 220}
"""The system call, by processor."""

_CLONE_PARENT = 0x8000


def is_supported() -> bool:
    """Whether this machine can make children for another process."""
    return sys.platform == "linux" and platform.machine() in SYS_CLONE and hasattr(os, "pidfd_open")


def fork_sibling() -> int:
    """Like ``os.fork``, but the new process is a child of this one's parent.

    Raises:
        OSError: There can be no further process.
    """
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    clone = libc.syscall
    clone.restype = ctypes.c_long
    arguments = [ctypes.c_long(n) for n in (SYS_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)]
    python.PyOS_BeforeFork()
    pid = int(clone(*arguments))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "cannot fork")
    return pid
