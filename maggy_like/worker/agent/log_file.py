"""The log file of a trial on this machine: the beginning and the end of its output, with all lines finished."""

from __future__ import annotations

import contextlib
import os
from io import FileIO
from pathlib import Path

MAX_FILE = 64 << 20
"""Bytes to keep from the beginning of a trial's output."""

MAX_END = 64 << 10
"""Bytes to keep from the end of the output."""


class LogFile:
    """A file with the beginning of the output, the number of bytes left out, and the last lines.

    If the file cannot be written (a full disk, a directory without permission), the trial continues, and the next
    output is another try. A trial's attempts share its name.
    """

    def __init__(self, directory: str, name: str, cap: int = MAX_FILE) -> None:
        self.error: OSError | None = None  # the error of the last failed write, if any
        self._path = Path(directory) / name
        self._cap = cap
        self._left_out = 0
        self._end = b""
        self._live = b""
        self._live_from = 0
        self._space = 0
        self._file: FileIO | None = None  # until the first output: a trial without output has no file

    def write(self, lines: bytes) -> None:
        """Write finished lines in place of what :meth:`show` wrote."""
        if self._file is None:
            self._space = self._open()
        self._withdraw()
        if self._space and (not self._left_out or self._catch_up()):
            written = self._append(lines[: self._space])
            self._space -= written
            lines = lines[written:]
        if lines:
            self._left_out += len(lines)
            self._end = (self._end + lines[-MAX_END:])[-MAX_END:]

    def show(self, live: bytes) -> None:
        """Write ``live``, which may still change, at the end of the file."""
        if live == self._live:
            return
        if self._file is None:
            self._space = self._open()
        self._withdraw()
        if self._file is not None and not self._left_out and 0 < len(live) < self._space:
            self._live_from = self._size()
            self._live = live[: self._append(live)]

    def close(self) -> None:
        """Write the last lines, and close."""
        if self._left_out:
            self._withdraw()
            self._catch_up()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _catch_up(self) -> bool:
        """Write the note about the bytes left out, and the last lines; return whether all was written."""
        text = self._end
        if (left_out := self._left_out - len(self._end)) > 0:
            cut, _, last = self._end.partition(b"\n")
            text = f"\n... {left_out + len(cut) + 1} bytes left out ...\n".encode() + last
        written = self._append(text)
        self._space = max(0, self._space - written)
        if written:
            self._end = text[written:]
            self._left_out = len(self._end)
        return written == len(text)

    def _open(self) -> int:
        """Open the file, and return how many bytes of the output's beginning it can still take."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = FileIO(self._path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))
            return max(0, self._cap - self._file.tell())
        except OSError as error:
            self.error = error
            return 0

    def _withdraw(self) -> None:
        """Remove what :meth:`show` wrote, unless another attempt of the trial has written after it."""
        if self._live and self._file is not None:
            with contextlib.suppress(OSError):
                if self._size() == self._live_from + len(self._live):
                    self._file.truncate(self._live_from)
        self._live = b""

    def _size(self) -> int:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size

    def _append(self, data: bytes) -> int:
        """Write as much as possible, and return the number of bytes written."""
        written = 0
        try:
            while self._file is not None and written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self.error = error
        return written
