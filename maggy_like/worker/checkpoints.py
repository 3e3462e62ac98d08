"""Checkpoints in a store by URL, so that a paused or lost trial goes on anywhere."""

from __future__ import annotations

import pickle
from typing import Any


class CheckpointStore:
    """Saves and loads the states of trials under one folder of any fsspec file system.

    Args:
        url: The folder, or None to keep states in memory (a function that runs alone).
    """

    _KEPT = 2  # the driver may know only of the one before the newest when a worker is lost

    def __init__(self, url: str | None) -> None:
        self._url = url.rstrip("/") if url is not None else None
        self._memory: dict[str, bytes] = {}
        self._saved: list[str] = []

    def save(self, trial: int, attempt: int, step: int, state: Any) -> str:
        """Save a state, whole or not at all.

        Returns:
            The URL that :meth:`load` takes.
        """
        data = pickle.dumps(state, protocol=5)
        if self._url is None:
            self._memory = {"memory": data}
            return "memory"
        url = f"{self._url}/{trial:05d}/{attempt}-{step}.pkl"
        fs, path = _open_file_system(url)
        fs.makedirs(fs._parent(path), exist_ok=True)
        fs.pipe_file(f"{path}.part", data)
        fs.mv(f"{path}.part", path)
        if url not in self._saved:
            self._saved.append(url)
        while len(self._saved) > self._KEPT:
            _, old = _open_file_system(self._saved.pop(0))
            fs.rm_file(old)
        return url

    def load(self, url: str) -> Any:
        """Read a state back."""
        if self._url is None:
            return pickle.loads(self._memory[url])
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


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    return fs, path
