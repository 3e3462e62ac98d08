"""Small files next to a run's journal, by which its driver, workers and clients find each other."""

from __future__ import annotations

import contextlib
from typing import TypeVar

import msgspec

from maggy_like.protocol.endings import Ending
from maggy_like.storage.file_systems import open_url

T = TypeVar("T")


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error that ended a run, for clients: its class, its message and its notes."""

    kind: str
    message: str
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()  # the further arguments of a ``TrialsFailedError``: traceback and remedy


class DriverRecord(msgspec.Struct, frozen=True):
    """Where the driver of a run is. The file contains no secret."""

    run: str  # identifies the call of ``lagom``
    attempt: int  # number, from 0, of Spark's attempt at the driver's task that wrote it
    address: str  # ZeroMQ address of its server
    host: str  # name of its machine
    began: float  # Unix time at which the first attempt began
    n_trials: int | None = None  # maximum number of configurations, or None
    timeout: float | None = None  # maximum seconds of the search, or None
    is_over: bool = False  # whether the run has ended, so that clients stop looking for a driver
    error: ErrorRecord | None = None  # the error that ended the run, if any


class StopRequestRecord(msgspec.Struct, frozen=True):
    """A client's request to end a run with the ending ``stopped`` or ``interrupted``."""

    run: str
    reason: Ending

    def __post_init__(self) -> None:
        if self.reason not in (Ending.STOPPED, Ending.INTERRUPTED):
            raise ValueError(f"reason must be stopped or interrupted, got {self.reason}")


class LogLineRecord(msgspec.Struct, frozen=True, array_like=True):
    """A line for the user, see :class:`~maggy_like.display.base.LogLine`."""

    trial: int | None
    text: str
    rank: int | None = None
    is_warning: bool = False


class LogLinesRecord(msgspec.Struct, frozen=True):
    """The driver's newest lines."""

    run: str  # identifies the call of ``lagom``
    first: int  # the number of the first line
    lines: tuple[LogLineRecord, ...]


class ControlFiles:
    """The control files of one run, in the directory of its journal."""

    def __init__(self, directory: str) -> None:
        self._fs, path = open_url(directory)
        self._directory = path = path.rstrip("/")
        self._driver, self._stop, self._lines = (f"{path}/{name}.json" for name in ("driver", "stop", "lines"))

    def has_directory(self) -> bool:
        """Return whether the run's directory is visible from here."""
        return bool(self._fs.exists(self._directory))

    def publish(self, record: DriverRecord) -> None:
        """Write where the driver is, or how it ended."""
        self._fs.pipe_file(self._driver, msgspec.json.encode(record))

    def driver(self) -> DriverRecord | None:
        """Read where the driver of the run is; None if no driver has written it."""
        return self._read(self._driver, DriverRecord)

    def ask_to_stop(self, record: StopRequestRecord) -> None:
        """Ask the driver to end the run."""
        self._fs.pipe_file(self._stop, msgspec.json.encode(record))

    def stop_wanted(self, run: str) -> Ending | None:
        """Read the ending that a client requested for this call of ``lagom``; None if none did."""
        record = self._read(self._stop, StopRequestRecord)
        return record.reason if record is not None and record.run == run else None

    def publish_lines(self, record: LogLinesRecord) -> None:
        """Write the newest lines for the clients."""
        self._fs.pipe_file(self._lines, msgspec.json.encode(record))

    def lines(self) -> LogLinesRecord | None:
        """Read the driver's newest lines; None if there are none."""
        return self._read(self._lines, LogLinesRecord)

    def clear(self, run: str) -> None:
        """Remove the files of earlier calls of ``lagom``, so that clients follow and stop only this one."""
        kinds: dict[str, type[DriverRecord | StopRequestRecord | LogLinesRecord]] = {
            self._driver: DriverRecord,
            self._stop: StopRequestRecord,
            self._lines: LogLinesRecord,
        }
        for path, kind in kinds.items():
            with contextlib.suppress(Exception):  # each file system raises its own; the run does not depend on this
                record = self._read(path, kind)
                if record is not None and record.run != run:
                    self._fs.rm_file(path)

    def _read(self, path: str, kind: type[T]) -> T | None:
        """Read a record; None if it does not exist, or is being written."""
        try:
            return msgspec.json.decode(self._fs.cat_file(path), type=kind)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return None
