"""Python's resource trackers: processes that remove what another one that is gone has left in shared memory.

Each process that makes a :class:`multiprocessing.shared_memory.SharedMemory` or a semaphore starts one. It does its
work once all that hold the other end of its pipe are gone, so it must be the last to be killed. Joblib has one of its
own, whose work :func:`~maggy_like.worker.child.exits.remove_leftovers` does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from maggy_like.processes.lifeline import kill_tree

PATIENCE = 1.0
"""Seconds that trackers get, of which they need a few hundredths."""

_LOOK_MS = 10
_MARK = b"from multiprocessing.resource_tracker import main"


def kill_but_trackers(pid: int) -> None:
    """Kill a process and, if it leads one, its process group; if it has a tracker, itself alone."""
    if any(map(_is_tracker, _children_of(pid))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    else:
        kill_tree(pid)


def let_trackers_end(orphans: Callable[[], list[int]]) -> None:
    """Kill orphans but for the trackers among them, and wait for these to end (Linux).

    Args:
        orphans: Process ids of this process's children that nobody wants any more.
    """
    trackers = [pid for pid in orphans() if _is_tracker(pid)]
    ends: list[int] = []
    poller = select.poll()
    for pid in trackers:
        with contextlib.suppress(OSError):  # this process may open no more: then it is killed with the others
            ends.append(os.pidfd_open(pid))
            poller.register(ends[-1], select.POLLIN)
    left, deadline = set(ends), time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        for pid in set(orphans()).difference(trackers):  # as one dies, those that it had started are ours
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for end, _ in poller.poll(_LOOK_MS):
            poller.unregister(end)
            left.discard(end)
    for end in ends:
        os.close(end)


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _MARK in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
