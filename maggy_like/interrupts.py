"""Ctrl-C as a wish, not as an exception in whatever line happens to run."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupts_to(handle: Callable[[int], None]) -> Iterator[None]:
    """Have SIGINT call ``handle(count)``, the first time with 1, while the block runs.

    In the main thread alone: no other gets signals. A process that ignores SIGINT goes on to.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    counts = itertools.count(1)
    signal.signal(signal.SIGINT, lambda *_: handle(next(counts)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
