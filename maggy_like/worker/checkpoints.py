"""Checkpoints in a store by URL, so that a paused or lost trial goes on anywhere."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any

SHARDED = ".dcp"
"""How the URL of a state ends that several ranks wrote, each its shards."""


class CheckpointStore:
    """Saves and loads the states of one attempt under one folder of any fsspec file system.

    Which of them are of use, the driver says; a state is removed only after a newer one was saved.

    Args:
        url: The folder, or None to keep states in memory (a function that runs alone).
        discard: URLs of older states to be removed.
    """

    def __init__(self, url: str | None, discard: tuple[str, ...] = ()) -> None:
        self._url = url.rstrip("/") if url is not None else None
        self._memory = b""
        self._count = 0
        self._discard = list(discard)

    @property
    def has_place(self) -> bool:
        """Whether states go to a file system."""
        return self._url is not None

    def next_url(self, trial: int, attempt: int, suffix: str = ".pkl") -> str:
        """Where the next state goes: the same on every rank, each of which calls this for every state."""
        self._count += 1
        return f"{self._url}/{trial:05d}/{attempt}-{self._count}{suffix}" if self._url else f"memory:{self._count}"

    def save(self, url: str, state: Any) -> None:
        """Save a state, whole or not at all."""
        data = pickle.dumps(state, protocol=5)
        if self._url is None:
            self._memory = data
            return
        fs, path = _open_file_system(url)
        _write(fs, f"{path}.part", data)
        fs.mv(f"{path}.part", path)

    def remove_later(self, url: str) -> None:
        """Have a state removed by the next :meth:`tidy`."""
        self._discard.append(url)

    def tidy(self) -> None:
        """Remove what is of no use any more; call after a newer state was saved."""
        while self._url is not None and self._discard:
            _remove(self._discard.pop())

    def load(self, url: str) -> Any:
        """Read a state back."""
        if self._url is None:
            return pickle.loads(self._memory)
        return load_state(url)


def load_state(url: str) -> Any:
    """Read a state that was saved whole.

    Raises:
        FileNotFoundError: There is none.
    """
    fs, path = _open_file_system(url)
    return pickle.loads(fs.cat_file(path))


def save_state(url: str, state: Any) -> None:
    """Save one state of its own, which nothing removes."""
    CheckpointStore(url).save(url, state)


def returned_url(store: str) -> str:
    """Where what a function returned that is no training is kept."""
    return f"{store.rstrip('/')}/returned.pkl"


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
        fs.rm(path, recursive=url.endswith(SHARDED))


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    return fs, path
