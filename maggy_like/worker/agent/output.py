"""A trial's output, written to its log file, and shortened for the driver."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import NamedTuple

from maggy_like.storage.log_file import MAX_FILE, LogFile

MAX_ROW = 1 << 16
"""Maximum bytes of a row, so that a line without end does not fill the memory."""

MAX_ROWS = 20
"""Number of rows that a program can move up to, such as those of nested progress bars."""

_MOVE = re.compile(rb"\r|\n|\x1b\[(\d{0,3})([AB])")
_CUT_OFF = re.compile(rb"\x1b(\[\d{0,3})?\Z")


class Screen:
    """Separates finished lines from those that may be redrawn.

    Carriage returns and the codes that move the cursor up and down are interpreted, as far as progress bars use them:
    what is written after one replaces the whole row. A row is finished when the cursor has left it downwards. A
    redrawn row is finished only when the cursor has moved further down than it ever came back, so that nested bars
    stay together.
    """

    def __init__(self) -> None:
        self._rows = [b""]
        self._redrawn = [False]
        self._row = 0
        self._restarts = False  # whether the next text takes the place of its row,
        self._redraws = False  # and whether it is then one of a row that is redrawn
        self._reach = 0  # how many rows the cursor has gone back at most
        self._rest = b""  # an escape sequence that is not whole yet

    @property
    def live(self) -> list[bytes]:
        """Return the rows that may still change, without blank ones."""
        return [row.rstrip() for row in self._rows if row.strip()]

    def feed(self, data: bytes) -> bytes:
        """Process output, and return the lines that it finishes, each with its newline."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        is_plain = b"\r" not in data and b"\x1b" not in data
        if is_plain and len(self._rows) == 1 and not self._redrawn[0] and not self._restarts:
            lines, newline, rest = (self._rows[0] + data).rpartition(b"\n")
            self._rows[0] = rest
            finished = lines + newline
        else:
            if cut_off := _CUT_OFF.search(data[-8:]):
                self._rest = cut_off[0]
                data = data[: -len(self._rest)]
            finished = self._draw(data)
        if len(self._rows[self._row]) > MAX_ROW:
            finished += self._move_down()
        return finished

    def flush(self) -> bytes:
        """Return all remaining rows, each with a newline."""
        finished = b"".join(row + b"\n" for row in self.live)
        self._rows, self._redrawn, self._row, self._restarts = [b""], [False], 0, False
        return finished

    def _draw(self, data: bytes) -> bytes:
        finished, start = bytearray(), 0
        if b"\x1b" not in data:  # so that a flood of refreshes costs little
            data = b"\n".join(_last_state(line) if b"\r" in line else line for line in data.split(b"\n"))
        for move in _MOVE.finditer(data):
            self._write(data[start : move.start()])
            start = move.end()
            if move[0] == b"\r":
                self._restarts = self._redraws = True
            elif move[0] == b"\n":
                finished += self._move_down()
            else:
                finished += self._move(int(move[1] or 1) * (-1 if move[2] == b"A" else 1))
        self._write(data[start:])
        return bytes(finished)

    def _write(self, text: bytes) -> None:
        if not text:
            return
        if self._restarts:
            self._rows[self._row], self._redrawn[self._row] = text, self._redraws
            self._restarts = False
        else:
            self._rows[self._row] += text

    def _move_down(self) -> bytes:
        """Begin the next row, and return the lines that this finishes."""
        self._row += 1
        self._restarts, self._redraws = self._row < len(self._rows), False
        if not self._restarts:
            self._rows.append(b"")
            self._redrawn.append(False)
        return self._settle()

    def _move(self, rows: int) -> bytes:
        """Move up or down; rows above the first one seemed to be finished."""
        rows = max(-MAX_ROWS, min(rows, MAX_ROWS))
        target = max(self._row + rows, len(self._rows) - MAX_ROWS)
        above, below = max(0, -target), max(0, target - len(self._rows) + 1)
        self._rows = [b""] * above + self._rows + [b""] * below
        self._redrawn = [True] * above + self._redrawn + [False] * below
        self._reach = max(self._reach, -rows)
        self._row = target + above
        self._restarts = self._redraws = True
        return self._settle()

    def _settle(self) -> bytes:
        """Return the finished rows as lines; an erased bar leaves none."""
        finished = []
        while self._row and (self._row > self._reach or not self._redrawn[0]):
            row, redrawn = self._rows.pop(0), self._redrawn.pop(0)
            self._row -= 1
            if redrawn:
                row = row.rstrip()
            if row or not redrawn:
                finished.append(row + b"\n")
        return b"".join(finished)


def _last_state(line: bytes) -> bytes:
    """Return a line without what its carriage returns have overwritten."""
    written = line.rstrip(b"\r")
    _, redrawn, state = written.rpartition(b"\r")
    return redrawn + state + line[len(written) :]


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
    """Output for the driver.

    Attributes:
        lines: Finished lines.
        dropped: Number of lines that were left out.
        live: Present text of a line that is being written or redrawn, such as a progress bar.
    """

    lines: list[str]
    dropped: int
    live: str


class TrialOutput:
    """Reads the output of a child.

    Args:
        output: Read end of the child's stdout and stderr.
        folder: Folder of the trial's log file.
        name: Name of the log file.
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
