"""Ctrl-C and SIGTERM as a request to stop, instead of an exception in whatever line happens to run."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

STOPPING = signal.SIGINT, signal.SIGTERM
"""The signals that ask a process to end."""


@contextlib.contextmanager
def interrupts_to(handle: Callable[[int], None], signals: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
    """Have signals call ``handle(count)``, the first time with 1, while the block runs.

    Only the main thread gets signals: in another one nothing changes. A signal that the process ignores stays ignored.
    The handlers are restored afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    counts = itertools.count(1)
    with contextlib.ExitStack() as undo:
        for number in signals:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                signal.signal(number, lambda *_: handle(next(counts)))
                undo.callback(signal.signal, number, before)
        yield


def raise_interrupt(count: int) -> None:
    """The default handling of Ctrl-C."""
    raise KeyboardInterrupt
