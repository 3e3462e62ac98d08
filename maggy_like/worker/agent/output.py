"""A trial's output: into its log file, and trimmed to the driver."""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

from maggy_like.storage.log_file import MAX_FILE, LogFile
from maggy_like.worker.agent.screen import Screen

MAX_LINES = 200
"""Lines a batch that go to the driver; the rest is counted."""

MAX_LINE = 4000
"""Characters of a line that go to the driver."""

MAX_BATCH = 100_000
"""Characters a batch that go to the driver."""

_TAIL = 20
_READ = 1 << 18
_LARGEST_PIPE = 1 << 20


class Printed(NamedTuple):
    """What goes to the driver.

    Attributes:
        lines: Finished lines.
        dropped: How many more were left out.
        live: What the line that is being written or redrawn, such as a progress bar, shows now.
    """

    lines: list[str]
    dropped: int
    live: str


class TrialOutput:
    """Reads what a child printed.

    Args:
        output: Read end of the child's stdout and stderr.
        folder: Where the trial's log file goes.
        name: The log file's name.
        cap: Bytes of output that the log file keeps from the beginning.
    """

    def __init__(self, output: int, folder: str, name: str, *, cap: int = MAX_FILE) -> None:
        os.set_blocking(output, False)
        self._output = output
        self._screen = Screen()
        self._live = ""
        self._lines: list[str] = []
        self._room = MAX_BATCH
        self._dropped = 0
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._told_error = False
        self._file = LogFile(folder, name, cap)

    def read(self) -> bool:
        """Read what is there, 256 KiB at most; False at the end of the output."""
        return self._read() != 0

    def read_all(self) -> None:
        """Read all that is there now, half a line included.

        No more than a pipe holds: what an ended trial left behind may print for ever.
        """
        size = 0
        while size < _LARGEST_PIPE and (count := self._read()):
            size += count
        self._finish(self._screen.flush())

    def take(self) -> Printed:
        """The output since the last call."""
        if self._file.error is not None and not self._told_error:
            self._told_error = True
            self._lines.append(f"what this trial prints cannot be written to its log file: {self._file.error}")
        self._live = self._live_text()
        self._file.show(b"\n".join(self._screen.live))
        taken = Printed(self._lines, self._dropped, self._live)
        self._lines, self._dropped, self._room = [], 0, MAX_BATCH
        return taken

    @property
    def error(self) -> OSError | None:
        """Why something could not be written to the log file, if so."""
        return self._file.error

    @property
    def has_lines(self) -> bool:
        """Whether :meth:`take` would give finished lines."""
        return bool(self._lines or self._dropped)

    @property
    def is_redrawn(self) -> bool:
        """Whether the line that is not finished has changed since the last call of :meth:`take`."""
        return self._live_text() != self._live

    @property
    def tail(self) -> str:
        """The last lines of all, for a trial that died without a word."""
        return "\n".join(self._tail)

    def close(self) -> None:
        """Close the log file."""
        self._file.close()

    def _read(self) -> int | None:
        """Read once; how many bytes that were (0 at the end), or None if there is nothing now."""
        try:
            data = os.read(self._output, _READ)
        except BlockingIOError:
            return None
        self._finish(self._screen.feed(data))
        return len(data)

    def _finish(self, lines: bytes) -> None:
        if lines:
            self._file.write(lines)
            self._keep(lines[:-1])

    def _live_text(self) -> str:
        """The rows that may yet be redrawn, as one line."""
        rows = self._screen.live
        return "  ".join(map(_text, rows))[:MAX_LINE] if rows else ""

    def _keep(self, lines: bytes) -> None:
        """Take in whole lines; only those that are wanted are cut out, so that a flood costs little."""
        count = lines.count(b"\n") + 1
        for line in lines.split(b"\n", free)[:free] if (free := MAX_LINES - len(self._lines)) > 0 else ():
            text = _text(line)
            if len(text) > self._room:
                self._room = 0
                break
            self._room -= len(text)
            self._lines.append(text)
            count -= 1
        self._dropped += count
        self._tail.extend(map(_text, lines.rsplit(b"\n", _TAIL)[-_TAIL:]))


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace")
