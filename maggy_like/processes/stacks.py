"""Where a process is: its Python stacks, which it writes at a signal, whatever it does at that moment.

A process lets its forks write to one shared file, which another process reads. Nothing else is needed of them, so also
one that waits for a lock, or that has stopped in a library, shows its place.

``faulthandler`` writes at once, but it crashes a process if a frame is incomplete at that moment. In code that makes
many generators or threads, one request in 10 to 3,000 does. So a process that must continue is first asked by a signal
whose handler Python calls between two instructions. If it does not answer, its main thread waits or is in a library,
and the frames of this thread do not change.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import linecache
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from maggy_like.processes.imports import PACKAGE, is_library_file
from maggy_like.processes.system import children_of
from maggy_like.processes.titles import trials_of

_REAL_TIME = int(signal.SIGRTMAX) if sys.platform.startswith("linux") else 0

# Signals that nobody else uses; 0 if the system has none.
_POLITE = _REAL_TIME and _REAL_TIME - 6  # all threads, between two instructions of Python
_MAIN = _REAL_TIME and _REAL_TIME - 5  # the main thread, at once
_ALL = _REAL_TIME - 4 if _REAL_TIME else int(getattr(signal, "SIGINFO", 0))  # all threads, at once

PATIENCE = 0.5
"""Seconds within which processes must begin to write their stacks; it takes a millisecond."""

_POLITE_PATIENCE = 0.25
"""Seconds after which the main thread of a process counts as in a library or waiting."""

_PAUSE = 0.02
"""Seconds without further text after which the stacks are complete."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)

_COLLECTIVE = re.compile(r"[/\\]torch[/\\](distributed[/\\].*|nn[/\\]parallel[/\\]distributed|autograd[/\\]graph)\.py$")
"""Files of torch in which a rank waits for the others."""


@dataclass(frozen=True)
class Stacks:
    """The stacks of one process."""

    pid: int
    text: str  # all threads, each with its most recent call first; empty if the process did not write them
    sources: Mapping[str, str]  # text of files that are not on this machine, such as notebook cells

    def place(self) -> str:
        """Return the user's innermost line, such as ``train.py:22 in fit (time.sleep(60))``; empty if unknown."""
        for frame in self._frames():
            file, line = frame["file"], int(frame["line"])
            if not is_library_file(file):
                shown = self._line(file, line)
                return f"{os.path.basename(file)}:{line} in {frame['name']}" + (f" ({shown})" if shown else "")
        return ""

    def is_in_collective(self) -> bool:
        """Return whether it waits for other ranks."""
        frames = list(self._frames())
        return any(_COLLECTIVE.search(frame["file"]) for frame in frames[:_DEEP])

    def _frames(self) -> Iterator[re.Match[str]]:
        """Yield the frames of the thread that took the signal, which is the main one, the innermost first."""
        _, mark, current = self.text.rpartition("Current thread ")
        return _FRAME.finditer(current if mark else self.text)

    def _line(self, file: str, line: int) -> str:
        lines = self.sources[file].splitlines() if file in self.sources else linecache.getlines(file)
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


_DEEP = 8
"""Number of innermost frames in which a wait for other ranks is looked for."""

_OF_CHILD = str(Path(PACKAGE, "worker", "child", "process.py"))


_NAME = "maggy-like-stacks"


def open_file() -> int:
    """Open a file for the stacks of this process's forks."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(_NAME)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | fcntl.fcntl(fd, fcntl.F_GETFL))
    return fd


def write_at_signal(fd: int) -> None:
    """Let this process and its forks write their stacks to ``fd`` when they are asked to."""

    def write_if_asked(number: int, frame: FrameType | None) -> None:
        if os.pread(fd, 64, 0).startswith(_question(os.getpid(), number)):  # and the asker has not given up
            faulthandler.dump_traceback(fd)

    if _ALL:
        faulthandler.register(_ALL, fd, all_threads=True)
    if _POLITE:
        faulthandler.register(_MAIN, fd, all_threads=False)
        signal.signal(_POLITE, write_if_asked)
        signal.siginterrupt(_POLITE, False)  # a library's system calls are restarted, as with the other two


def read_stacks(
    fd: int, pids: Iterable[int], sources: Mapping[str, str] | None = None, *, before_kill: bool = False
) -> list[Stacks]:
    """Ask processes one after the other for their stacks; those that cannot write them are left out.

    Processes that are killed next (``before_kill``) write the stacks of all threads at once, which may crash them.
    """
    found = []
    patience = PATIENCE  # for all together: of frozen processes, none writes anything
    for pid in pids:
        texts = []
        for number in (_ALL,) if before_kill else (_POLITE, _MAIN):
            if _catches(pid, number):
                began = time.monotonic()
                texts.append(_ask(fd, pid, number, _POLITE_PATIENCE if number == _POLITE else patience))
                if texts[-1]:
                    break
                patience -= (time.monotonic() - began) * (number != _POLITE)
        if texts:
            found.append(Stacks(pid, texts[-1], sources or {}))
    return found


def read_stacks_of(pid: int) -> list[Stacks]:
    """Ask any process of a worker of this machine, and all that it has started, for their stacks."""
    for place in Path(f"/proc/{pid}/fd").glob("*"):  # none of a process that has just ended
        with contextlib.suppress(OSError):
            if os.readlink(place) == f"/memfd:{_NAME} (deleted)":
                with open(place, "r+b") as file:
                    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND | fcntl.fcntl(file, fcntl.F_GETFL))
                    return read_stacks(file.fileno(), descendants(pid))
    return []


def stacks_of_run(run: str) -> str:
    """Return the stacks of the trials of a run that run in processes of this machine, as text; empty without any."""
    return "\n\n".join(
        f"{trial}, process {stacks.pid}: {stacks.place()}\n{stacks.text}"
        for pid, trial in sorted(trials_of(run).items())
        for stacks in read_stacks_of(pid)
    )


def _question(pid: int, number: int) -> bytes:
    """Return the first line of the file while a process is asked by a signal."""
    return b"%d %d\n" % (pid, number)


def _ask(fd: int, pid: int, number: int, patience: float) -> str:
    """Return what a process writes at a signal, once it has written no more for a moment."""
    os.ftruncate(fd, 0)
    start = size = os.write(fd, _question(pid, number))
    deadline = time.monotonic() + patience
    with contextlib.suppress(OSError):  # it has ended
        os.kill(pid, number)
        while size > start or time.monotonic() < deadline:
            time.sleep(_PAUSE)
            before, size = size, os.fstat(fd).st_size
            if size == before > start:
                break
    return _without_callers(os.pread(fd, size - start, start).decode(errors="backslashreplace"))


def _without_callers(text: str) -> str:
    """Return stacks without the frames that call the user's function, and without threads of this project."""
    kept = []
    for thread in filter(None, text.strip().split("\n\n")):
        head, *frames = (line for line in thread.splitlines() if __file__ not in line)
        own = [_OF_CHILD in frame for frame in frames]
        shown = frames[: own.index(True)] if True in own else frames
        if shown:
            kept.append("\n".join((head, *shown)))
    return "\n\n".join(kept)


def _catches(pid: int, number: int) -> bool:
    """Return whether a process runs and handles a signal, which would end it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return number > 0 and not sys.platform.startswith("linux")  # elsewhere, the signal is ignored by default
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    is_dead = re.search(r"^State:\s*[ZX]", status, re.MULTILINE) is not None
    return caught is not None and not is_dead and bool(int(caught[1], 16) >> (number - 1) & 1)


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all that it has started, as far as the system lists them."""
    yield pid
    for child in children_of(pid):
        yield from descendants(child)
