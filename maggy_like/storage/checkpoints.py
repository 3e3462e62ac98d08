"""Checkpoints in a store at a URL, so that a paused or lost trial can continue on any worker."""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from maggy_like.protocol.state_names import SHARDED, WHOLE, StateName, parse_name, state_url
from maggy_like.protocol.values import ReportError
from maggy_like.storage.file_systems import is_store_fault, lasting_remedy, open_url, puts_whole, write_file

T = TypeVar("T")

WRITE_PATIENCE = 900.0
"""Seconds that other ranks wait for a state from rank 0, which may itself wait for the store."""


class StateLostError(Exception):
    """A checkpoint is damaged."""


class StateGoneError(StateLostError, FileNotFoundError):
    """A checkpoint does not exist."""


class Retry(Protocol):
    """Calls an operation of the store; in a trial, retries until the store is back."""

    def __call__(self, verb: str, act: Callable[[], T], *answers: type[Exception]) -> T:
        """Return the result of ``act``; raise errors of the types ``answers``, which are not refusals."""


def once(verb: str, act: Callable[[], T], *answers: type[Exception]) -> T:
    """Call without a retry."""
    return act()


class CheckpointStore:
    """Saves and loads the states of one attempt by name in a directory of any fsspec file system.

    The driver decides which states are still needed. A state is removed only after a newer one was saved. Names that
    are not valid are neither read nor written, and states of other trials are never removed.
    """

    def __init__(self, url: str | None, trial: int = 0, discard: tuple[str, ...] = (), retry: Retry = once) -> None:
        self._retry = retry
        self._url = url  # the directory, or None to keep states in memory (a function that is called outside of a run)
        self._trial = trial
        self._memory = b""
        self._count = 0
        self._discard = list(discard)

    @property
    def has_place(self) -> bool:
        return self._url is not None

    def next_name(self, attempt: int, suffix: str = WHOLE) -> str:
        """Return the name of the next state; all ranks call this for every state, so they get the same name."""
        self._count += 1
        return str(StateName(self._trial, attempt, self._count, suffix))

    def url_of(self, name: str) -> str:
        """Return the URL of a state; raise ValueError if the name is not valid."""
        return state_url(self._url or "memory:", name)

    def save(self, name: str, state: Any) -> None:
        """Save a state, completely or not at all.

        Raise ReportError if it cannot be pickled, or cannot be written now or later, and ValueError if the name is not
        valid.
        """
        data = _pickle("the state given to checkpoint()", state)
        if self._url is None:
            self._memory = data
        else:
            _save(self.url_of(name), data, self._retry)

    def keep(self, returned: Any) -> None:
        """Save what a function given to ``run`` returned; raise ReportError if it cannot be pickled."""
        if self._url is not None:
            save_state(returned_url(self._url), returned, self._retry)

    def remove_later(self, name: str) -> None:
        """Have the next :meth:`tidy` remove a state."""
        self._discard.append(name)

    def tidy(self) -> None:
        """Remove the states that are no longer needed, until the store refuses; call after saving a newer state."""
        while self._url is not None and self._discard and self.remove(self._discard[-1]):
            self._discard.pop()

    def remove(self, name: str) -> bool:
        """Remove a state of this trial, or the parts of an incomplete one; errors do not fail the trial.

        Return False if the store is unavailable, since each further attempt would take seconds.
        """
        try:
            if self._url is not None and parse_name(name).trial == self._trial:
                fs, path = open_url(self.url_of(name))
                if name.endswith(SHARDED):
                    fs.rm(path, recursive=True)
                else:
                    fs.rm_file(path)  # one request; rm() looks the path up first
        except Exception as error:
            return isinstance(error, FileNotFoundError) or not is_store_fault(error)
        return True

    def load(self, name: str) -> Any:
        """Load a state.

        Raise StateLostError if it is damaged or does not exist, and ValueError if the name is not valid.
        """
        if self._url is None:
            return _unpickle(self._memory)
        return load_state(self.url_of(name), self._retry)

    def await_state(self, name: str) -> Any:
        """Load a state that rank 0 may still be writing (see :func:`await_state`)."""
        return await_state(self.url_of(name), self._retry)


def load_state(url: str, retry: Retry = once) -> Any:
    """Load a state that one process saved; raise StateGoneError if it is missing, StateLostError if it is damaged."""
    try:
        data = retry("read", partial(_read, url), FileNotFoundError)
    except FileNotFoundError as error:
        raise StateGoneError(f"{url} does not exist: it was removed, or its store is not visible here") from error
    try:
        return _unpickle(data)
    except (EOFError, pickle.UnpicklingError) as error:  # errors of pickle for a truncated state
        raise StateLostError(f"{url} is damaged: its {len(data)} bytes are not a complete state ({error})") from error


def await_state(url: str, retry: Retry = once) -> Any:
    """Load a state that rank 0 may still write; raise ReportError if it does not appear within ``WRITE_PATIENCE``."""
    waited, pause = 0.0, 0.01
    while True:
        try:
            return load_state(url, retry)
        except StateGoneError:
            if waited >= WRITE_PATIENCE:
                raise ReportError(
                    f"rank 0 did not write {url} within {WRITE_PATIENCE:.0f} s; call checkpoint() equally often on all "
                    "ranks, before restore()"
                ) from None
        time.sleep(pause)
        waited += pause
        pause = min(2 * pause, 1.0)


def save_state(url: str, returned: Any, retry: Retry = once) -> None:
    """Save what a function returned; raise ReportError if it cannot be pickled."""
    _save(url, _pickle("what the function returned", returned), retry)


def _save(url: str, data: bytes, retry: Retry) -> None:
    try:
        retry("written", partial(_write_whole, url, data))
    except OSError as error:
        if not (remedy := lasting_remedy(error)):
            raise
        raise ReportError(f"{len(data)} bytes cannot be saved to {url} ({error.strerror}); {remedy}") from error


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Name the object in the error if it cannot be pickled, which a retry would not change."""
    try:
        yield
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{what} cannot be saved ({type(error).__name__}: {error}); leave out what exists only in this process "
            "(locks, generators, open files), or pass the state_dict() of the objects that hold it"
        ) from error


def _pickle(what: str, state: Any) -> bytes:
    """Pickle an object; classes and functions of a script or notebook are included, for other processes."""
    from maggy_like.processes.pickles import dumps

    with naming(what):
        return dumps(state)


def returned_url(store: str) -> str:
    """Return the URL of what a function given to ``run`` returned."""
    return f"{store.rstrip('/')}/returned.pkl"


def _unpickle(data: bytes) -> Any:
    """Unpickle an object without changes to the classes of this script or notebook.

    cloudpickle recognizes a class that this process has sent, but replaces its methods by the unpickled ones. Those
    refer to the notebook as it was then: they would not call a helper that was redefined since.
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
    fs, path = open_url(url)
    return bytes(fs.cat_file(path))


def _write_whole(url: str, data: bytes) -> None:
    fs, path = open_url(url)
    if puts_whole(fs):  # one request; with a temporary file such a store would copy and delete
        fs.pipe_file(path, data)
        return
    part = f"{path}.part"
    try:
        write_file(fs, part, data)
        fs.mv(part, path)
    except BaseException:
        with contextlib.suppress(Exception):  # it may not exist, or the store may be unavailable
            fs.rm_file(part)
        raise
