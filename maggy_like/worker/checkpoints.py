"""Checkpoints in a store by URL, so that a paused or lost trial goes on anywhere."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any


class CheckpointStore:
    """Saves and loads the states of one attempt under one folder of any fsspec file system.

    Three files at most: the newest, and the two newest that the driver was told of (its word on
    the last may be lost together with the worker). What an attempt goes on from stays: other trials
    may start from it too, and the driver alone knows when none does any more.

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
        fs.makedirs(fs._parent(path), exist_ok=True)
        fs.pipe_file(f"{path}.part", data)
        fs.mv(f"{path}.part", path)
        if self._untold is not None:
            _remove(self._untold)
        self._untold = url
        for old in self._discard:
            with contextlib.suppress(FileNotFoundError):  # of an attempt that was cut off as it tidied up
                _remove(old)
        self._discard = ()
        return url

    def told(self) -> None:
        """Take in that the driver knows of the newest state."""
        if self._untold is not None:
            self._told.append(self._untold)
            self._untold = None
        while len(self._told) > 2:
            _remove(self._told.pop(0))

    def load(self, url: str) -> Any:
        """Read a state back."""
        if self._url is None:
            return pickle.loads(self._memory)
        fs, path = _open_file_system(url)
        return pickle.loads(fs.cat_file(path))


def is_visible(store: str, token: str) -> bool:
    """Whether ``store`` holds the mark that the driver left there (see :func:`mark_store`)."""
    try:
        fs, path = _open_file_system(f"{store.rstrip('/')}/.run")
        return bool(fs.cat_file(path) == token.encode())
    except (OSError, ValueError, ImportError):
        return False


def mark_store(store: str, token: str) -> None:
    """Leave a mark in the store by which workers see that it is the same place."""
    fs, path = _open_file_system(f"{store.rstrip('/')}/.run")
    fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, token.encode())


def _remove(url: str) -> None:
    fs, path = _open_file_system(url)
    fs.rm_file(path)


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    return fs, path
