"""Checkpoints in a store by URL, so that a paused or lost trial goes on anywhere."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from maggy_like.protocol.report_error import ReportError
from maggy_like.protocol.state_names import SHARDED, WHOLE, StateName, parse_name, state_url

T = TypeVar("T")

WRITE_PATIENCE = 900.0
"""Seconds that another rank waits for a state that rank 0 is writing; it may be waiting for the store itself."""


MAX_REASON = 300
"""Characters of what a file system says that a worker passes on."""


class Retry(Protocol):
    """Calls what a store may refuse; a trial tries again until the store serves."""

    def __call__(self, verb: str, act: Callable[[], T], *answers: type[Exception]) -> T:
        """What ``act`` gives; ``answers`` are errors that are no refusal."""


def once(verb: str, act: Callable[[], T], *answers: type[Exception]) -> T:
    """Try no second time."""
    return act()


class CheckpointStore:
    """Saves and loads the states of one attempt by name under one folder of any fsspec file system.

    Which of them are of use, the driver says; a state is removed only after a newer one was saved. What is no name
    of a state is neither read nor written, and what is no state of this trial is not removed, whoever asks for it.

    Args:
        url: The folder, or None to keep states in memory (a function that runs alone).
        trial: Number of the trial.
        discard: Names of older states to be removed.
        retry: Does what the store may refuse.
    """

    def __init__(self, url: str | None, trial: int = 0, discard: tuple[str, ...] = (), retry: Retry = once) -> None:
        self._retry = retry
        self._url = url
        self._trial = trial
        self._memory = b""
        self._count = 0
        self._discard = list(discard)

    @property
    def has_place(self) -> bool:
        """Whether states go to a file system."""
        return self._url is not None

    def next_name(self, attempt: int, suffix: str = WHOLE) -> str:
        """The name of the next state: the same on every rank, each of which calls this for every state."""
        self._count += 1
        return str(StateName(self._trial, attempt, self._count, suffix))

    def url_of(self, name: str) -> str:
        """Where a state is, or will be.

        Raises:
            ValueError: It names no state.
        """
        return state_url(self._url or "memory:", name)

    def save(self, name: str, state: Any) -> None:
        """Save a state, whole or not at all.

        Raises:
            ReportError: It holds what cannot be pickled.
            ValueError: It names no state.
        """
        data = _pickle("the state given to checkpoint()", state)
        if self._url is None:
            self._memory = data
        else:
            self._retry("written", partial(_write_whole, self.url_of(name), data))

    def keep(self, returned: Any) -> None:
        """Save what a function returned that is no training.

        Raises:
            ReportError: It holds what cannot be pickled.
        """
        if self._url is not None:
            save_state(returned_url(self._url), returned, self._retry)

    def remove_later(self, name: str) -> None:
        """Have a state removed by the next :meth:`tidy`."""
        self._discard.append(name)

    def tidy(self) -> None:
        """Remove what is of no use any more; call after a newer state was saved."""
        while self._url is not None and self._discard:
            self.remove(self._discard.pop())

    def remove(self, name: str) -> None:
        """Remove a state of this trial, or what there is of one that could not be saved whole.

        A store that will not, or has not got it, is no reason for a trial to fail.
        """
        with contextlib.suppress(Exception):
            if self._url is not None and parse_name(name).trial == self._trial:
                fs, path = _open_file_system(self.url_of(name))
                fs.rm(path, recursive=name.endswith(SHARDED))

    def load(self, name: str) -> Any:
        """Read a state back.

        Raises:
            ValueError: It names no state.
        """
        if self._url is None:
            return _unpickle(self._memory)
        return load_state(self.url_of(name), self._retry)

    def await_state(self, name: str) -> Any:
        """Read a state that rank 0 may still be writing.

        Raises:
            ReportError: None has come for ``WRITE_PATIENCE``.
        """
        return await_state(self.url_of(name), self._retry)


def load_state(url: str, retry: Retry = once) -> Any:
    """Read a state that was saved whole.

    Raises:
        FileNotFoundError: There is none.
    """
    return _unpickle(retry("read", partial(_read, url), FileNotFoundError))


def await_state(url: str, retry: Retry = once) -> Any:
    """Read a state that rank 0 may still be writing.

    Raises:
        ReportError: None has come for ``WRITE_PATIENCE``.
    """
    waited, pause = 0.0, 0.01
    while True:
        try:
            return load_state(url, retry)
        except FileNotFoundError:
            if waited >= WRITE_PATIENCE:
                raise ReportError(
                    f"rank 0 has written no {url} for {WRITE_PATIENCE:.0f} s; all ranks must call checkpoint() equally "
                    "often, before they call restore()"
                ) from None
        time.sleep(pause)
        waited += pause
        pause = min(2 * pause, 1.0)


def save_state(url: str, returned: Any, retry: Retry = once) -> None:
    """Save what a function returned.

    Raises:
        ReportError: It holds what cannot be pickled.
    """
    retry("written", partial(_write_whole, url, _pickle("what the function returned", returned)))


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Say of an object that cannot be pickled what it was. It could not the next time either: no failure to retry."""
    try:
        yield
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{what} cannot be saved ({type(error).__name__}: {error}); leave out what belongs to this process alone "
            "(locks, generators, open files), or give the state_dict() of objects that hold it"
        ) from error


def _pickle(what: str, state: Any) -> bytes:
    """The bytes of an object; classes and functions of a script or notebook are in them, for other processes."""
    import cloudpickle

    with naming(what):
        return bytes(cloudpickle.dumps(state, protocol=5))


def returned_url(store: str) -> str:
    """Where what a function returned that is no training is kept."""
    return f"{store.rstrip('/')}/returned.pkl"


def is_visible(store: str, run_id: str) -> bool:
    """Whether ``store`` holds the mark that the driver left there (see :func:`mark_store`)."""
    return look_for_mark(store, run_id) is None


def look_for_mark(store: str, run_id: str) -> str | None:
    """Why the driver's mark (see :func:`mark_store`) is not seen in ``store``; None where it is.

    Returns:
        Empty where nothing refuses: another place has that name here, such as a folder of this machine's own.
    """
    try:
        fs, path = _mark_of(store)
        return None if fs.cat_file(path) == run_id.encode() else ""
    except FileNotFoundError:
        return ""
    except Exception as error:  # of whatever file system it is: no credentials, no package, no way to it
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_REASON]


def is_marked(store: str) -> bool:
    """Whether ``store`` holds the mark of any run."""
    fs, path = _mark_of(store)
    return bool(fs.exists(path))


def mark_store(store: str, run_id: str) -> None:
    """Leave a mark in the store by which workers see that it is the same place."""
    fs, path = _mark_of(store)
    _write(fs, path, run_id.encode())


def unmark_store(store: str) -> None:
    """Take the mark away again."""
    fs, path = _mark_of(store)
    fs.rm_file(path)


def local_path(folder: str) -> str | None:
    """The path on this machine of a folder given by its path or URL; None where it is another file system's."""
    from fsspec.implementations.local import LocalFileSystem

    if "://" not in folder:
        return folder
    try:
        fs, path = _open_file_system(folder)
    except Exception:  # of whatever file system it is; its package may be missing
        return None
    return path if isinstance(fs, LocalFileSystem) else None


def put(url: str, data: bytes) -> None:
    """Write a file."""
    fs, path = _open_file_system(url)
    _write(fs, path, data)


def _mark_of(store: str) -> tuple[Any, str]:
    return _open_file_system(f"{store.rstrip('/')}/.run")


def _unpickle(data: bytes) -> Any:
    """The object; classes of this very script or notebook stay as they are.

    cloudpickle knows a class that this process has sent, but gives it the methods that came back, for which the rest of
    the notebook is as it was: a helper that is redefined after that would not be called.
    """
    mine = [it for it in vars(sys.modules["__main__"]).values() if isinstance(it, type) and it.__module__ == "__main__"]
    before = [(it, dict(vars(it))) for it in mine]
    try:
        return pickle.loads(data)
    finally:
        for it, attributes in before:
            for name, value in attributes.items():
                if vars(it).get(name) is not value:
                    type.__setattr__(it, name, value)


def _read(url: str) -> bytes:
    fs, path = _open_file_system(url)
    return bytes(fs.cat_file(path))


def _write_whole(url: str, data: bytes) -> None:
    fs, path = _open_file_system(url)
    part = f"{path}.part"
    try:
        _write(fs, part, data)
        fs.mv(part, path)
    except BaseException:
        with contextlib.suppress(Exception):  # there may be none, or the store may be gone
            fs.rm_file(part)
        raise


def _write(fs: Any, path: str, data: bytes) -> None:
    """Write a file and make its folder; on this machine's disks, for the user alone."""
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(fs, LocalFileSystem):
        os.makedirs(fs._parent(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, data)


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    return fs, path
