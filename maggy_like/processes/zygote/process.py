"""A process that was forked elsewhere, as a child of this one."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO, Protocol

from maggy_like.processes.zygote.request import STARTED

LOOK = 1.0
"""Seconds between two looks at whether the process that is to fork another one hangs."""


class Process(Protocol):
    """What ``subprocess.Popen`` and :class:`ForkedProcess` have in common."""

    stdin: IO[bytes] | None
    returncode: int | None

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status.

        Raises:
            subprocess.TimeoutExpired: It runs on.
        """

    def kill(self) -> None:
        """Kill it, unless it has ended."""


class ForkedProcess:
    """A child of this process that another one has forked, or is about to.

    Args:
        stdin: Our end of its standard input.
        answer: A pipe on which its id comes; the end of that without one says that it was never started.
        pid: Its id, if it is known already.
        on_given_up: Called with the seconds since it was asked for, when it is not wanted before it has begun.
        hangs: Whether the process that is to fork it has done nothing for too long since a time.

    Attributes:
        why: Why it was never started, where that process hung.
    """

    def __init__(
        self,
        stdin: IO[bytes],
        answer: int | None = None,
        pid: int | None = None,
        on_given_up: Callable[[float], None] | None = None,
        hangs: Callable[[float], bool] | None = None,
    ) -> None:
        self.why = ""
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self._answer = answer
        self._pid = pid
        self._on_given_up = on_given_up
        self._hangs = hangs
        self._asked = time.monotonic()
        self._lock = threading.RLock()

    def poll(self) -> int | None:
        with self._lock:
            self._read_answer(0.0)
            if self._answer is not None and self._hangs is not None and self._hangs(self._asked):
                self.why = "the process that forks workers did nothing for too long, and was killed"
                self._give_up(math.inf)
            if self.returncode is None and self._pid is not None:
                try:
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                except ChildProcessError:  # somebody else waits for our children: nobody knows its status
                    pid, status = self._pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            if self._pid is None:
                with self._lock:
                    self._read_answer(LOOK if left is None else min(LOOK, left))
            else:
                with contextlib.suppress(ProcessLookupError):
                    _poll_end(self._pid, left)
        return status

    def kill(self) -> None:
        with self._lock:
            if self.poll() is not None:
                return
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)  # it was not waited for, so its id is still its own
            else:
                self._give_up(time.monotonic() - self._asked)

    def _give_up(self, waited: float) -> None:
        """Want it no more, before it has begun."""
        if self._answer is not None:
            os.close(self._answer)  # which its zygote sees before it forks
            self._answer, self.returncode = None, -signal.SIGKILL
            if self._on_given_up is not None:
                self._on_given_up(waited)

    def _read_answer(self, timeout: float | None) -> None:
        if self._answer is None or not _poll(self._answer, timeout):
            return
        data = os.read(self._answer, STARTED.size)
        os.close(self._answer)
        self._answer = None
        if len(data) == STARTED.size:
            (self._pid,) = STARTED.unpack(data)
        else:
            self.returncode = -signal.SIGKILL  # the zygote is gone


def _poll_end(pid: int, timeout: float | None) -> None:
    """Wait for the end of a process."""
    end = os.pidfd_open(pid)
    try:
        _poll(end, timeout)
    finally:
        os.close(end)


def _poll(fd: int, timeout: float | None) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout is None else max(0.0, 1e3 * timeout)))
