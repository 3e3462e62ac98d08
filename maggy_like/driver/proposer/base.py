"""The protocol of the proposers, and the one that asks in the calling thread."""

from __future__ import annotations

import copy
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from maggy_like.errors import OptimizerError
from optimizers.core.base import Answer, Optimizer, Update
from optimizers.core.study import Study

_proposers: weakref.WeakSet[Proposer] = weakref.WeakSet()  # those of this process that may still ask
_claiming = threading.Lock()


class Proposer(ABC):
    """Keeps a study's history for its optimizer and asks it.

    An optimizer keeps a model between two asks. So one that another search of this process is asking is copied, and
    so are the optimizers within it.

    All methods are for one thread, the optimizer's; :meth:`interrupt` alone is for any.

    Raises:
        OptimizerError: The optimizer is another search's and cannot be copied.

    Attributes:
        patience: Seconds that it may take, once interrupted, until nothing is left of it.
    """

    patience = 1.0

    def __init__(self, study: Study) -> None:
        with _claiming:
            self._optimizer = _copied_if_asked(study.optimizer)
            self._claimed = _with_spares(self._optimizer)
            _proposers.add(self)
        self._history = study.history

    def start(self, show: Callable[[str], None]) -> None:
        """Get ready; returns at once.

        Args:
            show: Takes each line that the optimizer prints, from any thread.
        """

    @abstractmethod
    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        """The optimizer's ``index``-th answer, once its history has ``updates``.

        Raises:
            Exception: What the optimizer raised.
        """

    def interrupt(self) -> None:
        """Cut off an ask that is under way, where that can be done; no other follows."""

    def close(self) -> None:
        """End the process, if there is one; other searches may have the optimizer."""
        _proposers.discard(self)


class DirectProposer(Proposer):
    """Asks in the calling thread: for optimizers that answer in microseconds, and for a debugger."""

    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        for update in updates:
            self._history.apply(update)
        return self._optimizer.ask(index, self._history)


def _copied_if_asked(optimizer: Optimizer) -> Optimizer:
    """The optimizer, or a copy of it as it was before another search began to ask it or one within it."""
    claimed = {id(part): spare for proposer in _proposers for part, spare in proposer._claimed}
    shared = [part for part in _parts(optimizer) if id(part) in claimed]
    if not shared:
        return optimizer
    try:
        return copy.deepcopy(optimizer, {id(part): copy.deepcopy(claimed[id(part)]) for part in shared})
    except Exception as error:  # whatever a user's object raises
        raise OptimizerError(
            f"optimizer must not serve two searches at once, and this {type(optimizer).__name__} cannot be copied "
            f"({type(error).__name__}: {error}); use an object of its own for each search"
        ) from error


class _NoCopy:
    """Stands for the copy of what cannot be copied."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __deepcopy__(self, memo: object) -> Optimizer:
        raise self._error


def _with_spares(optimizer: Optimizer) -> list[tuple[Optimizer, Optimizer | _NoCopy]]:
    """An optimizer and those within it, each with a copy that is never asked: what is asked changes meanwhile."""
    parts = list(_parts(optimizer))
    try:
        return list(zip(parts, _parts(copy.deepcopy(optimizer)), strict=True))
    except Exception as error:  # whatever a user's object raises
        return [(part, _NoCopy(error)) for part in parts]


def _parts(optimizer: Optimizer) -> Iterator[Optimizer]:
    yield optimizer
    for value in getattr(optimizer, "__dict__", {}).values():
        if isinstance(value, Optimizer):
            yield from _parts(value)
