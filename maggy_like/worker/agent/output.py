"""The output of a trial: read from its process, written to its log file, and shortened for the driver."""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

from maggy_like.worker.agent.log_file import MAX_FILE, LogFile
from maggy_like.worker.agent.screen import Screen

MAX_LINES = 200
"""Maximum number of lines per batch that go to the driver; the rest is counted."""

MAX_LINE = 4000
"""Maximum characters of a line that go to the driver."""

MAX_BATCH = 100_000
"""Maximum characters per batch that go to the driver."""

_TAIL = 20
_READ = 1 << 18
_LARGEST_PIPE = 1 << 20


class Printed(NamedTuple):
    """Output for the driver."""

    lines: list[str]  # finished lines
    dropped: int  # number of lines that were left out
    live: str  # present text of a line that is being written or redrawn, such as a progress bar


class TrialOutput:
    """Reads a child's stdout and stderr from the descriptor ``output``.

    The log file (``name`` in ``directory``) keeps the first ``cap`` bytes.
    """

    def __init__(self, output: int, directory: str, name: str, *, cap: int = MAX_FILE) -> None:
        os.set_blocking(output, False)
        self._output = output
        self._screen = Screen()
        self._live = ""
        self._lines: list[str] = []
        self._room = MAX_BATCH
        self._dropped = 0
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._told_error = False
        self._file = LogFile(directory, name, cap)

    def read(self) -> bool:
        """Read up to 256 KiB; False at the end of the output."""
        return self._read() != 0

    def read_all(self) -> None:
        """Read all present output, including an incomplete line.

        Reads at most the content of a pipe, because processes left behind by a trial may print forever.
        """
        size = 0
        while size < _LARGEST_PIPE and (count := self._read()):
            size += count
        self._finish(self._screen.flush())

    def add(self, text: str) -> None:
        """Add text to the log file only."""
        self._file.write(text.encode(errors="backslashreplace"))

    def take(self) -> Printed:
        """Return the output since the last call."""
        if self._file.error is not None and not self._told_error:
            self._told_error = True
            self._lines.append(f"the output of this trial cannot be written to its log file: {self._file.error}")
        self._live = self._live_text()
        self._file.show(b"\n".join(self._screen.live))
        taken = Printed(self._lines, self._dropped, self._live)
        self._lines, self._dropped, self._room = [], 0, MAX_BATCH
        return taken

    @property
    def error(self) -> OSError | None:
        """Return why something could not be written to the log file, if so."""
        return self._file.error

    @property
    def has_lines(self) -> bool:
        """Whether :meth:`take` would return finished lines."""
        return bool(self._lines or self._dropped)

    @property
    def is_redrawn(self) -> bool:
        """Whether the unfinished line has changed since the last call of :meth:`take`."""
        return self._live_text() != self._live

    @property
    def tail(self) -> str:
        """Return the last lines, for a trial that died without a message."""
        return "\n".join(self._tail)

    def close(self) -> None:
        """Close the log file."""
        self._file.close()

    def _read(self) -> int | None:
        """Read once, and return the number of bytes (0 at the end), or None if there is nothing now."""
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
        """Return the rows that may be redrawn, as one line."""
        rows = self._screen.live
        return "  ".join(map(_text, rows))[:MAX_LINE] if rows else ""

    def _keep(self, lines: bytes) -> None:
        """Process complete lines; only those that are needed are cut out, so that a flood costs little."""
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
