"""Checkpoints in a store by URL, so that a paused or lost trial goes on anywhere."""

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
"""Seconds that another rank waits for a state that rank 0 is writing; it may be waiting for the store itself."""


class StateLostError(Exception):
    """A saved state is damaged: there is not enough of it to be read."""


class StateGoneError(StateLostError, FileNotFoundError):
    """A saved state is not there."""


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
    of a state is neither read nor written, and what is no state of this trial is never removed.

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
            ReportError: It holds what cannot be pickled, or cannot be written now or later.
            ValueError: It names no state.
        """
        data = _pickle("the state given to checkpoint()", state)
        if self._url is None:
            self._memory = data
        else:
            _save(self.url_of(name), data, self._retry)

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
        """Remove what is of no use any more, unless the store refuses; call after a newer state was saved."""
        while self._url is not None and self._discard and self.remove(self._discard[-1]):
            self._discard.pop()

    def remove(self, name: str) -> bool:
        """Remove a state of this trial, or what there is of one that could not be saved whole.

        A store that will not, or has not got it, is no reason for a trial to fail.

        Returns:
            Whether there is nothing left to try: each refusal of a store that is away takes seconds.
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
        """Read a state back.

        Raises:
            StateLostError: It is damaged, or gone.
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
        StateGoneError: There is none.
        StateLostError: It is damaged.
    """
    try:
        data = retry("read", partial(_read, url), FileNotFoundError)
    except FileNotFoundError as error:
        raise StateGoneError(f"{url} is gone: removed, or in a store that is not seen here") from error
    try:
        return _unpickle(data)
    except (EOFError, pickle.UnpicklingError) as error:  # so it ends where the end of a state is missing
        raise StateLostError(f"{url} is damaged: {len(data)} bytes that are no whole state ({error})") from error


def await_state(url: str, retry: Retry = once) -> Any:
    """Read a state that rank 0 may still be writing.

    Raises:
        ReportError: None has come for ``WRITE_PATIENCE``.
    """
    waited, pause = 0.0, 0.01
    while True:
        try:
            return load_state(url, retry)
        except StateGoneError:
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
    from maggy_like.processes.pickles import dumps

    with naming(what):
        return dumps(state)


def returned_url(store: str) -> str:
    """Where what a function returned that is no training is kept."""
    return f"{store.rstrip('/')}/returned.pkl"


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
    fs, path = open_url(url)
    return bytes(fs.cat_file(path))


def _write_whole(url: str, data: bytes) -> None:
    fs, path = open_url(url)
    if puts_whole(fs):  # one request; others would copy and delete
        fs.pipe_file(path, data)
        return
    part = f"{path}.part"
    try:
        write_file(fs, part, data)
        fs.mv(part, path)
    except BaseException:
        with contextlib.suppress(Exception):  # there may be none, or the store may be gone
            fs.rm_file(part)
        raise
