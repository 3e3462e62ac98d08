"""The protocol of the proposers, and the one that asks in the calling thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from optimizers.core.base import Answer, Update
from optimizers.core.study import Study


class Proposer(ABC):
    """Keeps a study's history for its optimizer and asks it.

    All methods are for one thread, the optimizer's; :meth:`interrupt` alone is for any.

    Attributes:
        patience: Seconds that it may take, once interrupted, until nothing is left of it.
    """

    patience = 1.0

    def __init__(self, study: Study) -> None:
        self._optimizer = study.optimizer
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
        """End the process, if there is one."""


class DirectProposer(Proposer):
    """Asks in the calling thread: for optimizers that answer in microseconds, and for a debugger."""

    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        for update in updates:
            self._history.apply(update)
        return self._optimizer.ask(index, self._history)
