"""The log files of a worker, and their copies in the run's directory if that is elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from maggy_like.protocol.state_names import log_name
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.file_systems import is_visible, put, refusal, try_local_path

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
        # Local directory; the files are written there, and removed when they are in the store.
        self.directory = tempfile.mkdtemp(prefix="maggy-logs-")
        self.trouble = ""  # message on logs that do not arrive, from the first failure; empty until then
        self._url = url  # directory in the store
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
        """Remove the directory, unless it has files that the store has not accepted."""
        self.finish()  # where the worker never got so far
        self._thread.join(CLOSE_PATIENCE)
        if not self._thread.is_alive() and not self._ended:
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- the thread ---------------------------------------------------------------------------

    def _complain(self, why: str) -> None:
        where = f"{self.directory} on {socket.gethostname()}"
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
        path = Path(self.directory, name)
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
    """The local directory of the log files, and what copies them to a store.

    If this worker has access to the run's directory, the files are written there, and a trial's attempts share a file.
    Otherwise each attempt has its own file in a directory that is removed with the worker, and a copy of it in the
    store.
    """

    def __init__(self, task: WorkerTask) -> None:
        own = try_local_path(task.logs)
        copies = task.logs if own is None else task.log_copies
        is_shared = own is not None and (not copies or is_visible(task.logs, task.run_id))
        self._shipper = None if is_shared else LogShipper(copies)
        self.directory = str(own) if self._shipper is None else self._shipper.directory
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
