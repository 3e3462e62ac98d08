"""Where a worker writes the trials' log files."""

from __future__ import annotations

import shutil
import tempfile


class LogPlace:
    """The folder of this machine in which the log files are written.

    Args:
        logs: The run's folder for them, a path or a URL. Where a URL is none of this machine's, they are written into
            a folder that goes with the worker.

    Attributes:
        folder: Where they are written.
    """

    def __init__(self, logs: str) -> None:
        own = _local_path(logs) if "://" in logs else logs
        self._goes = own is None
        self.folder = own if own is not None else tempfile.mkdtemp(prefix="maggy-logs-")

    def close(self) -> None:
        """Remove the folder, if it is to go."""
        if self._goes:
            shutil.rmtree(self.folder, ignore_errors=True)


def _local_path(url: str) -> str | None:
    """The path that a URL names; None where that is no file of this machine."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    try:
        fs, path = url_to_fs(url)
    except Exception:  # of whatever file system it is; its package may be missing
        return None
    return str(path) if isinstance(fs, LocalFileSystem) else None
