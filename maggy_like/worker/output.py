"""A trial's output: whole into its log file, trimmed to the driver."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

MAX_LINES = 200
"""Lines a batch that go to the driver; the rest is counted."""

MAX_LINE = 4000
"""Characters of a line that go to the driver."""


class TrialOutput:
    """Reads what a child printed.

    Args:
        output: Read end of the child's stdout and stderr.
        folder: Where the trial's log file goes.
        trial: Number of the trial.
    """

    def __init__(self, output: int, folder: str, trial: int) -> None:
        os.set_blocking(output, False)
        self._output = output
        self._rest = b""
        self._lines: list[str] = []
        self._dropped = 0
        self._tail: deque[str] = deque(maxlen=20)
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self._file = (path / f"{trial:05d}.log").open("ab", buffering=0)

    def read(self) -> bool:
        """Read what is there; False at the end of the output."""
        try:
            data = os.read(self._output, 1 << 18)
        except BlockingIOError:
            return True
        self._file.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 1 << 16:  # a line without end must not fill the memory
            lines.append(self._rest)
            self._rest = b""
        self._keep(lines)
        return bool(data)

    def read_all(self) -> None:
        """Read until nothing more is there now, half a line included."""
        size = -1
        while size != (size := self._file.tell()):
            self.read()
        if self._rest:
            self._keep([self._rest])
            self._rest = b""

    def take(self) -> tuple[list[str], int]:
        """The lines since the last call, and how many were left out."""
        taken = self._lines, self._dropped
        self._lines, self._dropped = [], 0
        return taken

    @property
    def has_lines(self) -> bool:
        """Whether :meth:`take` would give anything."""
        return bool(self._lines or self._dropped)

    @property
    def tail(self) -> str:
        """The last lines of all, for a trial that died without a word."""
        return "\n".join(self._tail)

    def close(self) -> None:
        """Close the log file."""
        self._file.close()

    def _keep(self, lines: list[bytes]) -> None:
        room = max(0, MAX_LINES - len(self._lines))
        self._dropped += max(0, len(lines) - room)
        self._lines += [_text(line) for line in lines[:room]]
        self._tail.extend(_text(line) for line in lines[-20:])


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace")
