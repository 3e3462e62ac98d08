"""Asking the optimizer: in the calling thread, or in a process (:mod:`~maggy_like.driver.proposer_process`)."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from maggy_like.errors import OptimizerError
from maggy_like.processes.pickles import dumps
from optimizers.core.base import Answer, Optimizer, Update
from optimizers.core.study import Study


@dataclass(frozen=True, slots=True)
class ProposerLaunch:
    """The driver's first message to the process."""

    path: tuple[str, ...]  # module search path, in the order in which custom optimizers find their modules
    optimizer: bytes  # the optimizer, pickled
    history: bytes  # the history of the study, pickled


@dataclass(frozen=True, slots=True)
class Question:
    """The driver's question to the process: the ``index``-th answer after ``updates``."""

    index: int
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """The process's message to the driver if the optimizer raised an exception."""

    error: bytes  # the exception, pickled. Empty if it cannot be pickled
    summary: str  # its type and message
    traceback: str


def pack(value: object) -> bytes:
    """Pickle a value, with classes and functions of notebooks and scripts by value."""
    return dumps(value)


def unpack(data: bytes) -> Any:
    """Unpickle what :func:`pack` returned. It never comes from the network, since both ends are on one machine."""
    return pickle.loads(data)  # noqa: S301


_proposers: weakref.WeakSet[Proposer] = weakref.WeakSet()  # the proposers of this process that are not closed
_claiming = threading.Lock()


class Proposer(ABC):
    """Keeps the history of a study for its optimizer, and asks the optimizer.

    An optimizer keeps a model between two questions. So if another search of this process uses the optimizer, or an
    optimizer within it, that one is copied.

    Only :meth:`interrupt` may be called from any thread. All other methods are for the optimizer's thread.
    """

    patience = 1.0  # seconds that an interrupted proposer may take to end

    def __init__(self, study: Study) -> None:
        with _claiming:
            self._optimizer = _copied_if_asked(study.optimizer)
            self._claimed = _with_spares(self._optimizer)
            _proposers.add(self)
        self._history = study.history

    def start(self, show: Callable[[str], None]) -> None:
        """Start, and return at once. ``show`` takes each line that the optimizer prints, from any thread."""

    @abstractmethod
    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        """Add ``updates`` to the history, and return the optimizer's ``index``-th answer, or raise its error."""

    def interrupt(self) -> None:
        """Cut off a running question if possible. No other one follows."""

    def close(self) -> None:
        """End the process, if there is one, and release the optimizer for other searches."""
        _proposers.discard(self)


class DirectProposer(Proposer):
    """Asks in the calling thread, for optimizers that answer in microseconds, and for a debugger."""

    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        for update in updates:
            self._history.apply(update)
        return self._optimizer.ask(index, self._history)


def _copied_if_asked(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer, or a copy in the state before another search used it or an optimizer within it."""
    claimed = {id(part): spare for proposer in _proposers for part, spare in proposer._claimed}
    shared = [part for part in _parts(optimizer) if id(part) in claimed]
    if not shared:
        return optimizer
    try:
        return copy.deepcopy(optimizer, {id(part): copy.deepcopy(claimed[id(part)]) for part in shared})
    except Exception as error:  # of any user's object
        raise OptimizerError(
            f"optimizer must not serve two searches at once, and this {type(optimizer).__name__} cannot be copied "
            f"({type(error).__name__}: {error}); use a separate object for each search"
        ) from error


class _NoCopy:
    """Replaces the copy of an object that cannot be copied."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __deepcopy__(self, memo: object) -> Optimizer:
        raise self._error


def _with_spares(optimizer: Optimizer) -> list[tuple[Optimizer, Optimizer | _NoCopy]]:
    """Return an optimizer and those within it, each with an unused copy, since the originals will change."""
    parts = list(_parts(optimizer))
    try:
        return list(zip(parts, _parts(copy.deepcopy(optimizer)), strict=True))
    except Exception as error:  # of any user's object
        return [(part, _NoCopy(error)) for part in parts]


def _parts(optimizer: Optimizer) -> Iterator[Optimizer]:
    yield optimizer
    for value in getattr(optimizer, "__dict__", {}).values():
        if isinstance(value, Optimizer):
            yield from _parts(value)
