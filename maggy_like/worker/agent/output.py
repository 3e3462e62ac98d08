"""A trial's output: written to its log file, copied to the run's folder, and shortened for the driver."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from io import FileIO
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from maggy_like.protocol.state_names import log_name
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.file_systems import is_visible, put, refusal, try_local_path

MAX_FILE = 64 << 20
"""Bytes to keep from the beginning of a trial's output."""

MAX_END = 64 << 10
"""Bytes to keep from the end of the output."""


class LogFile:
    """A file with the beginning of the output, the number of bytes left out, and the last lines.

    If the file cannot be written (a full disk, a folder without permission), the trial continues, and the next output
    is another try. A trial's attempts share its name.
    """

    def __init__(self, folder: str, name: str, cap: int = MAX_FILE) -> None:
        self.error: OSError | None = None  # the error of the last failed write, if any
        self._path = Path(folder) / name
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
    """Output for the driver."""

    lines: list[str]  # finished lines
    dropped: int  # number of lines that were left out
    live: str  # present text of a line that is being written or redrawn, such as a progress bar


class TrialOutput:
    """Reads a child's stdout and stderr from the descriptor ``output``.

    The log file (``name`` in ``folder``) keeps the first ``cap`` bytes.
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


INTERVAL = 60.0
"""Seconds between two copies of a running trial's log."""

SHARE = 10
"""Minimum pause after a copy, as a multiple of the copy's duration."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before another try of a refused copy: each pause is twice the one before."""

CLOSE_PATIENCE = 1.0
"""Seconds within which a thread that does not wait for the store must end."""

State = tuple[int, int]
"""A file's size and time of change."""


class LogShipper:
    """Copies complete files, as object stores require: at their attempt's end, and at intervals before.

    Each attempt has its own file, so that an attempt that ends late on an abandoned worker overwrites nothing.
    """

    def __init__(self, url: str) -> None:
        # Local folder; the files are written there, and removed when they are in the store.
        self.folder = tempfile.mkdtemp(prefix="maggy-logs-")
        self.trouble = ""  # message on logs that do not arrive, from the first failure; empty until then
        self._url = url  # folder in the store
        self._news: SimpleQueue[tuple[str, bool] | None] = SimpleQueue()
        self._running: dict[str, float] = {}  # files of attempts that run, and when the next copy is due
        self._ended: list[str] = []
        self._copied: dict[str, State] = {}
        self._pause, self._again_at = FIRST_PAUSE, 0.0
        self._thread = threading.Thread(target=self._serve, name="maggy-logs", daemon=True)
        self._thread.start()

    def begin(self, name: str) -> None:
        """Record that an attempt begins to write that file."""
        self._news.put((name, True))

    def end(self, name: str) -> None:
        """Record that it has ended, and the file is complete."""
        self._news.put((name, False))

    def finish(self) -> None:
        """Record that no other file will come; the present ones are tried once more."""
        self._news.put(None)

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do; False some time after :meth:`finish`."""
        return self._thread.is_alive()

    def give_up(self) -> None:
        """Record that the last files have not arrived in time."""
        self._complain(f"the store {self._url} does not answer in time")

    def close(self) -> None:
        """Remove the folder, unless it has files that the store has not accepted."""
        self.finish()  # where the worker never got so far
        self._thread.join(CLOSE_PATIENCE)
        if not self._thread.is_alive() and not self._ended:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- the thread ---------------------------------------------------------------------------

    def _complain(self, why: str) -> None:
        where = f"{self.folder} on {socket.gethostname()}"
        self.trouble = (
            self.trouble or f"the trials' logs do not arrive: {why}; files that are not copied stay in {where}"
        )

    def _serve(self) -> None:
        while self._take_news():
            now = time.monotonic()
            if now >= self._again_at:
                self._copy_due(now)
        self._again_at = 0.0
        self._ended = [name for name in self._ended if not self._copy(name, is_last=True)]

    def _take_news(self) -> bool:
        """Wait for the next message, or until something is due; False once no more will come."""
        try:
            news = self._news.get(timeout=self._patience())
        except Empty:
            return True
        if news is None:
            return False
        name, begins = news
        if begins:
            self._running[name] = time.monotonic() + INTERVAL
        else:
            self._running.pop(name, None)
            self._ended.append(name)
        return True

    def _patience(self) -> float | None:
        """Return the seconds until something is due; None for never."""
        due = [*self._running.values(), *([0.0] if self._ended else [])]
        return max(0.0, max(min(due), self._again_at) - time.monotonic()) if due else None

    def _copy_due(self, now: float) -> None:
        while self._ended and self._copy(self._ended[0], is_last=True):
            del self._ended[0]
        for name, due in self._running.items():
            if now >= due and not self._ended:  # else the store refuses
                self._copy(name, is_last=False)
                ended = time.monotonic()
                self._running[name] = ended + max(INTERVAL, SHARE * (ended - now))

    def _copy(self, name: str, *, is_last: bool) -> bool:
        """Copy a file if it has changed, and remove it after the last copy; whether the store has it."""
        path = Path(self.folder, name)
        if path.exists():  # else the trial has been silent so far
            try:
                file = path.stat()
                state = file.st_size, file.st_mtime_ns
                if file.st_size and self._copied.get(name) != state:
                    put(f"{self._url}/{name}", path.read_bytes())
                    self._copied[name] = state
            except Exception as error:  # of whatever file system it is
                self._refused(error)
                return False
            self._pause = FIRST_PAUSE
        if is_last:
            self._copied.pop(name, None)
            with contextlib.suppress(OSError):
                path.unlink()
        return True

    def _refused(self, error: Exception) -> None:
        said = refusal(self._url, "written", error)
        self._complain(f"{said}; the copy is tried again")
        self._again_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


class LogLocation:
    """The local folder of the log files, and what copies them to a store.

    If this worker has access to the run's folder, the files are written there, and a trial's attempts share a file.
    Otherwise each attempt has its own file in a folder that is removed with the worker, and a copy of it in the store.
    """

    def __init__(self, task: WorkerTask) -> None:
        own = try_local_path(task.logs)
        copies = task.logs if own is None else task.log_copies
        is_shared = own is not None and (not copies or is_visible(task.logs, task.run_id))
        self._shipper = None if is_shared else LogShipper(copies)
        self.folder = str(own) if self._shipper is None else self._shipper.folder
        self._trouble = ""
        self._is_reported = False

    def begin(self, trial: int, attempt: int, rank: int) -> str:
        """Record that an attempt begins, and return the name of its log file."""
        if self._shipper is None:
            return log_name(trial, rank)
        self._shipper.begin(name := log_name(trial, rank, attempt))
        return name

    def end(self, name: str) -> None:
        """Record that the file of an attempt is closed."""
        if self._shipper is not None:
            self._shipper.end(name)

    def failed(self, name: str, error: OSError) -> None:
        """Record that a file cannot be written."""
        said = error.strerror or str(error)
        self._trouble = (
            self._trouble or f"the output of trials is not in their log files: {name} cannot be written ({said})"
        )

    def take_trouble(self) -> str:
        """Return once why logs are not written, or do not arrive in the store; empty if they do."""
        trouble = self._trouble or (self._shipper.trouble if self._shipper is not None else "")
        if self._is_reported or not trouble:
            return ""
        self._is_reported = True
        return trouble

    def finish(self) -> None:
        """Record that no other attempt will come."""
        if self._shipper is not None:
            self._shipper.finish()

    def give_up(self) -> None:
        """Stop waiting for the store."""
        if self._shipper is not None:
            self._shipper.give_up()

    @property
    def is_busy(self) -> bool:
        """Whether files are on their way to the store; False some time after :meth:`finish`."""
        return self._shipper is not None and self._shipper.is_busy

    def close(self) -> None:
        """Remove temporary files."""
        if self._shipper is not None:
            self._shipper.close()
