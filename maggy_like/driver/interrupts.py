"""Ctrl-C and SIGTERM as a request to stop, instead of an exception in whatever line happens to run."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
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


_NUDGE = signal.SIGURG
"""Ends a wait of the main thread, and asks for nothing: a process ignores it unless it says otherwise."""

_FIRST, _LAST = 0.01, 20.0
"""Seconds between a signal and the first nudge, and before the last one; each pause is twice that before it."""

_OVER = 0
"""No signal's number."""


@contextlib.contextmanager
def waits_end() -> Iterator[None]:
    """Have a signal end a wait without an end, in C too, that the main thread begins as the signal comes.

    A training function may wait so, where it runs in that thread. Python notes a signal when it comes and handles it
    between two lines. One that comes after the last look, and before a wait has begun, is handled when the wait is
    over, which may be never. So a thread hears of each signal, and ends the waits of the main thread a few times;
    Python goes on with those that are none of the handler's concern. In another thread than the main one nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(_NUDGE) is None:  # not Python's
        yield
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    other = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    handler = signal.signal(_NUDGE, lambda *_: None)
    thread = threading.Thread(
        target=_nudge, args=(heard, other, threading.get_ident()), name="maggy-signals", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(other)
        os.set_blocking(told, True)
        os.write(told, bytes([_OVER]))  # its closed end would say nothing where a process was forked meanwhile
        thread.join()
        signal.signal(_NUDGE, handler)
        os.close(told)
        os.close(heard)


def _nudge(heard: int, other: int, main: int) -> None:
    """Take in the numbers of signals as they come, and end the main thread's waits after each that is no nudge."""
    waiting = select.poll()
    waiting.register(heard, select.POLLIN)
    pause: float | None = None
    while True:
        if not waiting.poll(None if pause is None else 1000 * pause) and pause is not None:
            signal.pthread_kill(main, _NUDGE)
            pause = 2 * pause if pause < _LAST else None
            continue
        numbers = os.read(heard, 1024)
        if other >= 0:  # somebody wants to hear of them, too
            with contextlib.suppress(OSError):
                os.write(other, numbers)
        if _OVER in numbers:
            return
        if any(number != _NUDGE for number in numbers):
            pause = _FIRST
