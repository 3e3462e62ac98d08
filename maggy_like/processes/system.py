"""What the system does for processes: their ties, descriptors, memory and working directory.

Each process ends with the one that started it, and a fork may be another process's child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from maggy_like.errors import ConfigError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_KILL_PAUSE = 0.001
"""Seconds between two checks of killed processes: a kill takes a moment."""


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library, which forks then need not look up again."""
    return ctypes.CDLL(None)


def die_with_parent(parent: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent dies (Linux; other systems rely on the ends of pipes).

    The parent's process id tells whether it has died already. Use a signal that can be handled if something must be
    cleaned up.
    """
    if not sys.platform.startswith("linux"):
        return
    _libc().prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose own parent dies, or stop that (Linux)."""
    if sys.platform.startswith("linux"):
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def children() -> list[int]:
    """Return the process ids of this process's children, including adopted ones (Linux)."""
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listing.read_text().split()] if listing.exists() else []


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of any process (Linux)."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def end_orphans(spared: Collection[int], patience: float) -> None:
    """Kill and reap this process's children except ``spared``, and the orphans that each leaves to it (Linux).

    Processes that no signal ends are left after ``patience`` seconds. Time in which this process or the machine was
    frozen does not count, since they could not die in it either.
    """
    waited = 0.0
    while (orphans := set(children()).difference(spared)) and waited < patience:
        for pid in orphans:
            kill_tree(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_KILL_PAUSE)
        waited += _KILL_PAUSE


def kill_tree(pid: int) -> None:
    """Kill a process and, if it leads one, its process group; ignore processes that have ended."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


SYS_CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call ``clone``, by processor."""

_CLONE_PARENT = 0x8000


def is_supported() -> bool:
    """Return whether :func:`fork_sibling` works on this machine."""
    return sys.platform == "linux" and platform.machine() in SYS_CLONE and hasattr(os, "pidfd_open")


@cache
def _clone() -> Callable[[], int]:
    """Return the system call that forks, as a child of this process's parent."""
    call = ctypes.PyDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    flags = _CLONE_PARENT | signal.SIGCHLD
    return partial(call, *(ctypes.c_long(number) for number in (SYS_CLONE[platform.machine()], flags, 0, 0, 0, 0)))


def fork_sibling() -> int:
    """Fork like ``os.fork``, but make the new process a child of this one's parent, which can then wait for it."""
    python, clone = ctypes.pythonapi, _clone()
    python.PyOS_BeforeFork()
    pid = int(clone())
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "cannot fork")
    return pid


def current_directory() -> str:
    """Return the working directory."""
    try:
        return os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory of this process was deleted or replaced ({error.strerror}); call os.chdir(...) "
            "with a directory that exists, or start Python again from there"
        ) from error


def open_descriptors() -> list[int]:
    """Return the open descriptors; empty if the system does not list them."""
    with contextlib.suppress(OSError):  # without /proc, or without a free descriptor for reading it
        return [int(name) for name in os.listdir("/proc/self/fd")]
    return []


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open (``ulimit -n``)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return os.sysconf("SC_OPEN_MAX") if limit == resource.RLIM_INFINITY else limit


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors except ``kept``."""
    if found := open_descriptors():
        for fd in set(found).difference(kept):
            with contextlib.suppress(OSError):  # it was the listing's own
                os.close(fd)
    else:
        for low, high in pairwise([-1, *sorted(kept), descriptor_limit()]):
            if low + 1 < high:  # or closerange(0, 0) would close all
                os.closerange(low + 1, high)


TOO_LITTLE_MEMORY = ("failed to map segment", "cannot allocate memory", "memory allocation still failed", "memoryerror")
"""Messages of loaders, in lower case, when the address space is too small for a library."""

# Measured with RLIMIT_AS on Linux: numpy 2.4, pyarrow 26, pandas 2.3, torch 2.13 with its optimizers.
LEAST_MEMORY = "minimum for an import only: numpy 96m, pyarrow 119m, pandas 259m, torch 666m; a trial needs more"


def address_space() -> int | None:
    """Return the bytes that this process may map; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def too_small() -> str:
    """Return what to do if the address space is too small."""
    return (
        "which is too little for this import: raise spark.executor.pyspark.memory or unset it (on one machine, raise "
        f"ulimit -v); {LEAST_MEMORY}"
    )
