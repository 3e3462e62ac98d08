"""Checkpoints in a store by URL, so that a paused or lost trial goes on anywhere."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any


class CheckpointStore:
    """Saves and loads the states of one attempt under one folder of any fsspec file system.

    Three files as a rule: the newest, and the two newest that the driver was told of. While the driver does not
    answer, all stay from the one on that it last said to know: the trial may go on elsewhere from that. What an
    attempt goes on from stays: other trials may start from it too, and the driver alone knows when none does any more.

    Args:
        url: The folder, or None to keep states in memory (a function that runs alone).
        discard: URLs of older states to be removed.
    """

    def __init__(self, url: str | None, discard: tuple[str, ...] = ()) -> None:
        self._url = url.rstrip("/") if url is not None else None
        self._memory = b""
        self._count = 0
        self._untold: str | None = None
        self._told: list[str] = []
        self._discard = discard

    def save(self, trial: int, attempt: int, state: Any) -> str:
        """Save a state, whole or not at all.

        Returns:
            The URL that :meth:`load` takes.
        """
        data = pickle.dumps(state, protocol=5)
        self._count += 1
        if self._url is None:
            self._memory = data
            return f"memory:{self._count}"
        url = f"{self._url}/{trial:05d}/{attempt}-{self._count}.pkl"
        fs, path = _open_file_system(url)
        _write(fs, f"{path}.part", data)
        fs.mv(f"{path}.part", path)
        if self._untold is not None:
            _remove(self._untold)
        self._untold = url
        for old in self._discard:
            _remove(old)
        self._discard = ()
        return url

    def told(self, kept: str | None) -> None:
        """Take in that the driver was told of the newest state.

        Args:
            kept: The newest that the driver has said to know.
        """
        if self._untold is not None:
            self._told.append(self._untold)
            self._untold = None
        while len(self._told) > 2 and kept in self._told[1:]:
            _remove(self._told.pop(0))

    def load(self, url: str) -> Any:
        """Read a state back."""
        if self._url is None:
            return pickle.loads(self._memory)
        fs, path = _open_file_system(url)
        return pickle.loads(fs.cat_file(path))


def is_visible(store: str, run_id: str) -> bool:
    """Whether ``store`` holds the mark that the driver left there (see :func:`mark_store`)."""
    try:
        fs, path = _open_file_system(f"{store.rstrip('/')}/.run")
        return bool(fs.cat_file(path) == run_id.encode())
    except (OSError, ValueError, ImportError):
        return False


def mark_store(store: str, run_id: str) -> None:
    """Leave a mark in the store by which workers see that it is the same place."""
    fs, path = _open_file_system(f"{store.rstrip('/')}/.run")
    _write(fs, path, run_id.encode())


def _write(fs: Any, path: str, data: bytes) -> None:
    """Write a file and make its folder; on this machine's disks, for the user alone."""
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(fs, LocalFileSystem):
        os.makedirs(fs._parent(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, data)


def _remove(url: str) -> None:
    """Remove a state that nobody needs; a store that will not, or has not got it, is no reason for a trial to fail."""
    with contextlib.suppress(Exception):
        fs, path = _open_file_system(url)
        fs.rm_file(path)


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    return fs, path
