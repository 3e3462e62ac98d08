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
from maggy_like.driver.followers import Callbacks, DisplayFollower
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.driver.supervisor import FirstWorkers, GrowingSupervisor, Supervisor
from maggy_like.engines.base import Engine
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.task import LOG_PATIENCE, KeyPair, WorkerTask

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


POLL = 0.05
LEAVE_PATIENCE = 3.0
"""Seconds that workers get to leave by themselves once the search is over."""


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
    callbacks: Callbacks,
    interrupts: contextlib.ExitStack,
) -> None:
    """Launch the gang, follow the search to its end, and leave no process behind.

    Args:
        driver: Not yet started.
        engine: Provides the slots.
        task: What all workers of the run are given.
        admit: Lets an incarnation of a worker in; gives its key pair.
        size: How many workers.
        least: How many are enough (see :class:`Supervisor`).
        logs: Folder for the agents' own output.
        displays: Show the search.
        callbacks: Get each recorded event; begun by the caller.
        interrupts: Until this is left, Ctrl-C and SIGTERM end the search instead of raising: the caller has
            files to close, and a result to return.
    """
    patience = LEAVE_PATIENCE + (LOG_PATIENCE if task.copies_logs else 0.0)
    monitor = Monitor(driver, callbacks, patience)
    interrupts.enter_context(interrupts_to(lambda _: monitor.signalled()))
    if engine.isolation == "none":  # the function runs in this thread, and may wait without an end
        interrupts.enter_context(waits_end())
    kind = GrowingSupervisor if engine.is_elastic else Supervisor
    supervisor = kind(engine, task, admit, size, least, logs)
    driver.start()
    monitor.show_on(displays, in_threads=engine.isolation != "none")
    try:
        monitor.until_done(supervisor, FirstWorkers(engine, size))
    finally:
        driver.release()
        supervisor.leave(set() if monitor.hurried else driver.leaving, timeout=0.0 if monitor.hurried else 2.0)
        driver.join()
        monitor.finish()


class Monitor:
    """Supervises a running search and handles Ctrl-C.

    Attributes:
        hurried: Whether the user has pressed Ctrl-C a second time.
    """

    def __init__(self, driver: Driver, callbacks: Callbacks, patience: float = LEAVE_PATIENCE) -> None:
        self.hurried = self._was_interrupted = self._is_closing = False
        self._patience = patience
        self._driver = driver
        self._displays: list[DisplayFollower] = []
        self._callbacks = callbacks
        self._supervisor: Supervisor | None = None

    def signalled(self) -> None:
        """Ctrl-C or SIGTERM: it belongs to a function that runs in this thread, and else to the search.

        Raises:
            KeyboardInterrupt: In the function.
        """
        if self._supervisor is not None and self._supervisor.is_in_function:
            raise KeyboardInterrupt
        self.interrupted()

    def interrupted(self) -> None:
        """The first interruption stops the search, the second waits neither for workers nor for trackers."""
        if not (self._was_interrupted or self._is_closing):
            self._was_interrupted = True
            self._driver.post(StopRequested(Ending.INTERRUPTED))
        else:
            self.hurried = True
            self._driver.release()

    def show_on(self, displays: Sequence[Display], *, in_threads: bool) -> None:
        """Begin to show the search."""
        self._displays = [DisplayFollower(display, self._driver, in_thread=in_threads) for display in displays]

    def until_done(self, supervisor: Supervisor, first: FirstWorkers) -> None:
        """Follow the search until it is over and the workers have left, or had time to.

        Args:
            supervisor: Keeps the workers running.
            first: Says why no worker comes, if it takes long.
        """
        self._supervisor = supervisor
        while not self._driver.has_ended:
            self._look(supervisor)
            first.look(self._driver)
        deadline = time.monotonic() + self._patience
        while not (self._driver.done.is_set() or self.hurried or time.monotonic() > deadline):
            self._look(supervisor)

    def finish(self) -> None:
        """Let the callbacks have the last events, and show the last state."""
        self._is_closing = True
        self._callbacks.finish(self._driver.ending, lambda: self.hurried)
        for display in self._displays:
            display.finish(lambda: self.hurried)

    def _look(self, supervisor: Supervisor) -> None:
        supervisor.await_work(self._driver, POLL)
        self._callbacks.look()  # before the next trial, where that runs in this thread: it may be one too many
        for display in self._displays:
            display.look()
        if self._driver.is_stopping:
            supervisor.end_trials()
        try:
            supervisor.attend(self._driver)
        except KeyboardInterrupt:  # of a function that runs in this thread
            self.interrupted()
