"""A trial's output as a terminal would show it, so that redrawn progress bars do not fill its log."""

from __future__ import annotations

import re

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
