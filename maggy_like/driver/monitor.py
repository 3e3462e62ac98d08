"""The caller's side of a run: it supervises the workers and takes Ctrl-C. A user's code runs elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from maggy_like.display import Display
from maggy_like.driver.followers import Followers
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.interface import StopRequested
from maggy_like.driver.supervisor import FirstWorkers, GrowingSupervisor, Supervisor
from maggy_like.engines.base import Engine
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.task import LOG_PATIENCE, KeyPair, WorkerId, WorkerTask

STOPPING = signal.SIGINT, signal.SIGTERM
"""The signals that ask a process to end."""


@contextlib.contextmanager
def interrupts_to(handle: Callable[[int], None], signals: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
    """Call ``handle(count)`` for each signal while the block runs. The first count is 1.

    Only the main thread receives signals, so nothing changes in another one. A signal that the process ignores stays
    ignored. The handlers are restored afterwards.
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
"""Ends a wait of the main thread. A process ignores it by default."""

_FIRST, _LAST = 0.01, 20.0
"""Seconds between a signal and the first nudge, and before the last one. Each pause is twice the previous one."""

_OVER = 0
"""Not the number of a signal."""


@contextlib.contextmanager
def waits_end() -> Iterator[None]:
    """Let a signal end an endless wait, also in C, that the main thread begins just when the signal arrives.

    A training function that runs in that thread may wait in this way. Python records a signal when it arrives and
    handles it between two lines. If it arrives after the last check and before the wait begins, it is handled after
    the wait, which may never end. So a thread receives each signal, and interrupts the waits of the main thread a few
    times. Python resumes waits that do not concern the handler. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(_NUDGE) is None:  # not Python's
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    other = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handler = signal.signal(_NUDGE, lambda *_: None)
    thread = threading.Thread(
        target=_nudge, args=(reader, other, threading.get_ident()), name="maggy-signals", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(other)
        os.set_blocking(writer, True)
        os.write(writer, bytes([_OVER]))  # closing it would not suffice if a process was forked meanwhile
        thread.join()
        signal.signal(_NUDGE, handler)
        os.close(writer)
        os.close(reader)


def _nudge(reader: int, other: int, main: int) -> None:
    """Receive the numbers of signals, and end the main thread's waits after each one except nudges."""
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    pause: float | None = None
    while True:
        if not waiting.poll(None if pause is None else 1000 * pause) and pause is not None:
            signal.pthread_kill(main, _NUDGE)
            pause = 2 * pause if pause < _LAST else None
            continue
        numbers = os.read(reader, 1024)
        if other >= 0:  # another library waits for signals, too
            with contextlib.suppress(OSError):
                os.write(other, numbers)
        if _OVER in numbers:
            return
        if any(number != _NUDGE for number in numbers):
            pause = _FIRST


POLL = 0.05
LEAVE_PATIENCE = 3.0
"""Seconds that workers get to leave by themselves after the end of the search."""


def run_search(
    driver: Driver,
    engine: Engine,
    task: WorkerTask,
    admit: Callable[[WorkerId], KeyPair],
    size: int,
    *,
    least: int,
    logs: str,
    displays: Sequence[Display],
    followers: Followers,
    interrupts: contextlib.ExitStack,
) -> None:
    """Launch the workers, follow the search until its end, and leave no process behind.

    Until ``interrupts`` is closed, Ctrl-C and SIGTERM end the search instead of raising, since the caller has files to
    close and a result to return.
    """
    patience = LEAVE_PATIENCE + (LOG_PATIENCE if task.copies_logs else 0.0)
    monitor = Monitor(driver, followers, patience)
    interrupts.enter_context(interrupts_to(lambda _: monitor.signalled()))
    if engine.isolation == "none":  # the function runs in this thread, and may wait forever
        interrupts.enter_context(waits_end())
    kind = GrowingSupervisor if engine.is_elastic else Supervisor
    supervisor = kind(engine, task, admit, size, least, logs)
    driver.start()
    followers.show_on(displays)
    try:
        monitor.until_done(supervisor, FirstWorkers(engine, size))
    finally:
        driver.release()
        supervisor.leave(set() if monitor.hurried else driver.leaving, timeout=0.0 if monitor.hurried else 2.0)
        driver.join()
        monitor.finish()


class Monitor:
    """Supervises a running search and handles Ctrl-C."""

    def __init__(self, driver: Driver, followers: Followers, patience: float = LEAVE_PATIENCE) -> None:
        self.hurried = False  # whether the user has pressed Ctrl-C a second time
        self._was_interrupted = self._is_closing = False
        self._patience = patience
        self._driver = driver
        self._followers = followers
        self._supervisor: Supervisor | None = None

    def signalled(self) -> None:
        """Handle Ctrl-C or SIGTERM: for a function that runs in this thread, else for the search.

        Raises:
            KeyboardInterrupt: A function runs in this thread.
        """
        if self._supervisor is not None and self._supervisor.is_in_function:
            raise KeyboardInterrupt
        self.interrupted()

    def interrupted(self) -> None:
        """Stop the search after the first interruption. After the second, do not wait for workers and trackers."""
        if not (self._was_interrupted or self._is_closing):
            self._was_interrupted = True
            self._driver.post(StopRequested(Ending.INTERRUPTED))
        else:
            self.hurried = True
            self._driver.release()

    def until_done(self, supervisor: Supervisor, first: FirstWorkers) -> None:
        """Follow the search until it has ended, and the workers have left or had time to."""
        self._supervisor = supervisor
        while not self._driver.has_ended:
            self._look(supervisor)
            first.look(self._driver)
        deadline = time.monotonic() + self._patience
        while not (self._driver.done.is_set() or self.hurried or time.monotonic() > deadline):
            self._look(supervisor)

    def finish(self) -> None:
        """Pass the last events to the callbacks, and show the last state."""
        self._is_closing = True
        self._followers.finish(self._driver.ending, lambda: self.hurried)

    def _look(self, supervisor: Supervisor) -> None:
        supervisor.await_work(self._driver, POLL)
        self._followers.look()  # before the next trial, if that runs in this thread: a callback may end the run
        if self._driver.is_stopping:
            supervisor.end_trials()
        try:
            supervisor.attend(self._driver)
        except KeyboardInterrupt:  # raised in a function that runs in this thread
            self.interrupted()
