"""Where a worker writes the trials' log files."""

from __future__ import annotations

from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.file_systems import try_local_path
from maggy_like.storage.log_file import log_name
from maggy_like.storage.store_marks import is_visible
from maggy_like.worker.agent.log_copier import LogShipper


class LogLocation:
    """The folder of this machine in which the log files are written, and what copies them to a store.

    They are written where the reader looks for them, in the run's folder, where this worker sees it: then a trial's
    attempts share a file. Else each attempt has one of its own, in a folder that goes with the worker, and a copy of
    it in the store.

    Args:
        task: What the run is.

    Attributes:
        folder: Where they are written.
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
        """An attempt begins; the name of its log file."""
        if self._shipper is None:
            return log_name(trial, rank)
        self._shipper.begin(name := log_name(trial, rank, attempt))
        return name

    def end(self, name: str) -> None:
        """The file of an attempt is closed."""
        if self._shipper is not None:
            self._shipper.end(name)

    def failed(self, name: str, error: OSError) -> None:
        """A file cannot be written."""
        said = error.strerror or str(error)
        self._trouble = (
            self._trouble or f"what trials print is not in their log files: {name} cannot be written ({said})"
        )

    def take_trouble(self) -> str:
        """Why logs are not written, or do not arrive in the store, once; empty if they do."""
        trouble = self._trouble or (self._shipper.trouble if self._shipper is not None else "")
        if self._is_reported or not trouble:
            return ""
        self._is_reported = True
        return trouble

    def finish(self) -> None:
        """No other attempt will come."""
        if self._shipper is not None:
            self._shipper.finish()

    def give_up(self) -> None:
        """There is no more time to wait for the store."""
        if self._shipper is not None:
            self._shipper.give_up()

    @property
    def is_busy(self) -> bool:
        """Whether files are on their way to the store; false some time after :meth:`finish`."""
        return self._shipper is not None and self._shipper.is_busy

    def close(self) -> None:
        """Remove what is here for a while only."""
        if self._shipper is not None:
            self._shipper.close()
