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


def log_name(trial: int, rank: int = 0, attempt: int = 1) -> str:
    """The name of the log file of one of a trial's workers.

    Args:
        trial: The trial's number.
        rank: The worker's.
        attempt: Where each attempt has a file of its own (see :mod:`maggy_like.worker.agent.logs`), which one.

    Example:
        >>> log_name(7), log_name(7, rank=1), log_name(7, attempt=2)
        ('00007.log', '00007-1.log', '00007.2.log')
    """
    of_rank = f"-{rank}" if rank else ""
    return f"{trial:05d}{of_rank}.{attempt}.log" if attempt > 1 else f"{trial:05d}{of_rank}.log"


class LogFile:
    """The beginning of the output whole, then how much was left out, and the last lines.

    A file that cannot be written (a full disk, a folder without permission) costs the trial nothing, and is tried again
    with the next output.

    Args:
        folder: Where it goes; made if it is not there.
        name: Its name (see :func:`log_name`); a trial's attempts share it.
        cap: Bytes to keep from the beginning, over all attempts.

    Attributes:
        error: Why something could not be written, if so.
    """

    def __init__(self, folder: str, name: str, cap: int = MAX_FILE) -> None:
        self.error: OSError | None = None
        self._path = Path(folder) / name
        self._cap = cap
        self._left_out = 0
        self._end = b""
        self._live = b""
        self._live_from = 0
        self._room = 0
        self._file: FileIO | None = None  # until the first output comes: a silent trial has none

    def write(self, lines: bytes) -> None:
        """Take in finished lines, in the place of what :meth:`show` has shown."""
        if self._file is None:
            self._room = self._open()
        self._withdraw()
        if self._room and (not self._left_out or self._catch_up()):
            written = self._append(lines[: self._room])
            self._room -= written
            lines = lines[written:]
        if lines:
            self._left_out += len(lines)
            self._end = (self._end + lines[-MAX_END:])[-MAX_END:]

    def show(self, live: bytes) -> None:
        """Have ``live``, which may yet change, stand at the end of the file."""
        if live == self._live:
            return
        if self._file is None:
            self._room = self._open()
        self._withdraw()
        if self._file is not None and not self._left_out and 0 < len(live) < self._room:
            self._live_from = self._size()
            self._live = live[: self._append(live)]

    def close(self) -> None:
        """Write what is known of the end, and close."""
        if self._left_out:
            self._withdraw()
            self._catch_up()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _catch_up(self) -> bool:
        """Write the note about output that was left out, and the last lines; returns whether all is written."""
        text = self._end
        if (left_out := self._left_out - len(self._end)) > 0:
            cut, _, last = self._end.partition(b"\n")
            text = f"\n... {left_out + len(cut) + 1} bytes left out ...\n".encode() + last
        written = self._append(text)
        self._room = max(0, self._room - written)
        if written:
            self._end = text[written:]
            self._left_out = len(self._end)
        return written == len(text)

    def _open(self) -> int:
        """Make or open the file; how much of the beginning of the output it still takes."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = FileIO(self._path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))
            return max(0, self._cap - self._file.tell())
        except OSError as error:
            self.error = error
            return 0

    def _withdraw(self) -> None:
        """Take back what was shown, unless another attempt of the trial has written behind it."""
        if self._live and self._file is not None:
            with contextlib.suppress(OSError):
                if self._size() == self._live_from + len(self._live):
                    self._file.truncate(self._live_from)
        self._live = b""

    def _size(self) -> int:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size

    def _append(self, data: bytes) -> int:
        """Write as much as can be; how many bytes those were."""
        written = 0
        try:
            while self._file is not None and written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self.error = error
        return written
