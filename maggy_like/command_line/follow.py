"""The lines of a trial while it prints them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from maggy_like.cluster_driver.follow import Follower
from maggy_like.results.result import Result
from maggy_like.results.saved import log_urls, reading_log, written
from maggy_like.storage.file_systems import open_url
from maggy_like.storage.journal import backend_of
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.trial import TrialState

LOOK = 0.5
"""Seconds between two looks at the log and the journal."""

MOST_COMPARED = 4096
"""Bytes of the last line that are read again, to see whether it is still there."""

_OVER = (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


def follow_log(result: Result, trial: int, rank: int, first: int, show: Callable[[str], None]) -> None:
    """Show what a trial has printed, and what it prints until it, or its run, has ended.

    Args:
        result: Its run.
        rank: Which of its workers.
        first: How many of the lines that are there already are shown.
        show: Gets each whole line.

    Raises:
        UserError: The log cannot be read.
        JournalError: The journal cannot be read.
    """
    backend, paths = backend_of(str(result.directory)), RunPaths(result.directory, result.store)
    follower, log = Follower(backend), LogTail(paths, trial, rank)
    is_first, is_over = True, False
    while not is_over:
        if not is_first:
            time.sleep(LOOK)
        is_held = backend.is_held()  # first: what it writes until it ends is read
        follower.look()
        known = next(it for it in follower.machine.study.trials if it.id == trial)
        is_over = known.state in _OVER or follower.ended is not None or not is_held
        lines = log.look(known.attempt, is_over=is_over)
        for line in lines[max(0, len(lines) - first) :] if is_first else lines:
            show(line)
        is_first = False


class LogTail:
    """Reads what was added to the log files of a trial's worker since it looked last.

    Args:
        paths: Where the run is.
        trial: The trial's number.
        rank: The worker's.
    """

    def __init__(self, paths: RunPaths, trial: int, rank: int) -> None:
        self._paths = paths
        self._trial = trial
        self._rank = rank
        self._files: dict[str, _File] = {}

    def look(self, attempts: int, *, is_over: bool) -> list[str]:
        """The new lines; the first time, all.

        Args:
            attempts: How many attempts the trial has had.
            is_over: Whether nothing more comes, so that half a line is one too.

        Raises:
            UserError: A file system does not answer.
        """
        new: list[tuple[float, list[bytes]]] = []
        for url in log_urls(self._paths, self._trial, self._rank, attempts):
            fs, path = open_url(url)
            with reading_log(path):
                if lines := self._files.setdefault(url, _File()).take(fs, path, is_over=is_over):
                    new.append((written(fs, path), lines))
        new.sort(key=lambda part: part[0])
        return [line.decode(errors="replace") for _, lines in new for line in lines]


class _File:
    """How much of a file was read."""

    def __init__(self) -> None:
        self._count = 0  # lines
        self._end = 0  # of the last of them
        self._last = b""  # that one, or the end of it

    def take(self, fs: Any, path: str, *, is_over: bool) -> list[bytes]:
        """The whole lines behind those that were taken.

        A line that is redrawn may take the place of some that were there. Then all is read, and lines are counted.
        """
        fs.invalidate_cache()
        size = fs.size(path)
        start = self._end - len(self._last)
        data = fs.cat_file(path, start=start, end=size) if size > start else b""
        if data.startswith(self._last):
            lines = _lines(data[len(self._last) :], is_over=is_over)
            self._end += sum(map(len, lines))
        else:
            known = _lines(fs.cat_file(path), is_over=is_over)
            lines, self._end = known[self._count :], sum(map(len, known))
            self._last = known[-1][-MOST_COMPARED:] if known else b""
        self._count += len(lines)
        if lines:
            self._last = lines[-1][-MOST_COMPARED:]
        return lines


def _lines(data: bytes, *, is_over: bool) -> list[bytes]:
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n") and not is_over:
        lines.pop()  # it is being written
    return lines
