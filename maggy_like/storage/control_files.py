"""Small files beside a run's journal, through which its driver, workers and clients find each other."""

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


class DriverRecord(msgspec.Struct, frozen=True):
    """Where the driver of a run is. It holds no secret.

    Attributes:
        run: The call of ``lagom``.
        attempt: Which of Spark's attempts at the driver's task wrote it, from 0.
        address: ZeroMQ address of its server.
        host: Name of its machine.
        began: When the first attempt began: Unix time.
        n_trials: How many configurations are wanted, or None for no bound.
        timeout: Seconds that the search may take, or None.
        is_over: Whether the run has ended, and no driver is to be looked for.
        error: What it ended of, if of an error.
    """

    run: str
    attempt: int
    address: str
    host: str
    began: float
    n_trials: int | None = None
    timeout: float | None = None
    is_over: bool = False
    error: ErrorRecord | None = None


class StopRequestRecord(msgspec.Struct, frozen=True):
    """A client's request that a run ends; ``reason`` becomes its ending: ``stopped`` or ``interrupted``."""

    run: str
    reason: Ending

    def __post_init__(self) -> None:
        if self.reason not in (Ending.STOPPED, Ending.INTERRUPTED):
            raise ValueError(f"no client can end a run as {self.reason}")


class LogLineRecord(msgspec.Struct, frozen=True, array_like=True):
    """A line for the reader, as :class:`~maggy_like.display.base.LogLine` has it."""

    trial: int | None
    text: str
    rank: int | None = None


class LogLinesRecord(msgspec.Struct, frozen=True):
    """The driver's newest lines.

    Attributes:
        run: The call of ``lagom``.
        first: The number of the first of them.
    """

    run: str
    first: int
    lines: tuple[LogLineRecord, ...]


class ControlFiles:
    """The control files of one run.

    Args:
        folder: The folder of its journal: a path or a URL.
    """

    def __init__(self, folder: str) -> None:
        self._fs, path = open_url(folder)
        self._folder = path = path.rstrip("/")
        self._driver, self._stop, self._lines = (f"{path}/{name}.json" for name in ("driver", "stop", "lines"))

    def has_folder(self) -> bool:
        """Whether the run's folder is seen from here."""
        return bool(self._fs.exists(self._folder))

    def publish(self, record: DriverRecord) -> None:
        """Say where the driver is, or how it ended."""
        self._fs.pipe_file(self._driver, msgspec.json.encode(record))

    def driver(self) -> DriverRecord | None:
        """Where the driver of the run is; None where none has recorded it."""
        return self._read(self._driver, DriverRecord)

    def ask_to_stop(self, record: StopRequestRecord) -> None:
        """Ask the driver to end the run."""
        self._fs.pipe_file(self._stop, msgspec.json.encode(record))

    def stop_wanted(self, run: str) -> Ending | None:
        """The ending that a client asked for in this call of ``lagom``, if one did."""
        record = self._read(self._stop, StopRequestRecord)
        return record.reason if record is not None and record.run == run else None

    def publish_lines(self, record: LogLinesRecord) -> None:
        """Show lines to the clients."""
        self._fs.pipe_file(self._lines, msgspec.json.encode(record))

    def lines(self) -> LogLinesRecord | None:
        """The driver's newest lines, if it has any."""
        return self._read(self._lines, LogLinesRecord)

    def clear(self, run: str) -> None:
        """Remove the files of earlier calls of ``lagom``, so that no client follows or stops one of those."""
        kinds: dict[str, type[DriverRecord | StopRequestRecord | LogLinesRecord]] = {
            self._driver: DriverRecord,
            self._stop: StopRequestRecord,
            self._lines: LogLinesRecord,
        }
        for path, kind in kinds.items():
            with contextlib.suppress(Exception):  # of whatever file system it is: the run does not depend on it
                record = self._read(path, kind)
                if record is not None and record.run != run:
                    self._fs.rm_file(path)

    def _read(self, path: str, kind: type[T]) -> T | None:
        """An object; None if it is not there, or is being written just now."""
        try:
            return msgspec.json.decode(self._fs.cat_file(path), type=kind)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return None
