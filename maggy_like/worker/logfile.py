"""A trial's log file, which no flood of output makes grow without bound."""

from __future__ import annotations

import contextlib
import os
from io import FileIO
from pathlib import Path

MAX_FILE = 64 << 20
"""Bytes of a trial's output that stand in its log file from the beginning."""

MAX_END = 64 << 10
"""Bytes of the output's end that follow them."""


def log_name(trial: int, rank: int = 0) -> str:
    """The name of the log file of one of a trial's workers."""
    return f"{trial:05d}-{rank}.log" if rank else f"{trial:05d}.log"


class LogFile:
    """The beginning of the output whole, then how much was left out, and the last lines.

    A file that cannot be written (a full disk, a folder without permission) costs the trial nothing.

    Args:
        folder: Where it goes; made if it is not there.
        name: Its name (see :func:`log_name`); a trial's attempts share it.
        cap: Bytes to keep from the beginning, over all attempts.

    Attributes:
        error: Why something could not be written, if so.
    """

    def __init__(self, folder: str, name: str, cap: int = MAX_FILE) -> None:
        self.error: OSError | None = None
        self._left_out = 0
        self._end = b""
        self._room = 0
        self._file: FileIO | None = None
        path = Path(folder) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = FileIO(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))
            self._room = max(0, cap - self._file.tell())
        except OSError as error:
            self.error = error

    def write(self, data: bytes) -> None:
        """Take in what was printed."""
        if self._room:
            head = data[: self._room]
            written = self._append(head)
            self._room = self._room - written if written == len(head) else 0
            data = data[written:]
        if data:
            self._left_out += len(data)
            self._end = (self._end + data[-MAX_END:])[-MAX_END:]

    def close(self) -> None:
        """Write what is known of the end, and close."""
        if (left_out := self._left_out - len(self._end)) > 0:
            cut, _, last = self._end.partition(b"\n")
            self._append(f"\n... {left_out + len(cut) + 1} bytes left out ...\n".encode() + last)
        elif self._end:
            self._append(self._end)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _append(self, data: bytes) -> int:
        """Write as much as can be; how many bytes those were."""
        written = 0
        try:
            while self._file is not None and written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self.error = error
        return written
