"""One worker in the calling process and thread, for a debugger."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from maggy_like.engines.base import Engine, EngineRun
from maggy_like.protocol.task import Isolation, KeyPair, WorkerContext, WorkerTask
from maggy_like.rpc.endpoint import Endpoint
from maggy_like.worker.agent.agent import Agent
from maggy_like.worker.agent.children import InlineLauncher


class InlineRun(EngineRun):
    """Runs the agent in a thread, and its trials in the thread that calls :meth:`poll`."""

    def __init__(self, task: WorkerTask, index: int, incarnation: int, keys: KeyPair) -> None:
        super().__init__([index], incarnation)
        self._launcher = InlineLauncher(task)
        self._task = task
        self._context = WorkerContext(index, incarnation, socket.gethostname(), keys)
        self._thread = threading.Thread(target=self._serve, name="maggy-agent", daemon=True)
        self._thread.start()

    @property
    def is_in_function(self) -> bool:
        return self._launcher.is_in_function

    def await_trial(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for a trial or other news. Return False at once if none will come."""
        return self._launcher.await_trial(seconds)

    def end_trials(self) -> None:
        self._launcher.refuse()

    def poll(self) -> str | None:
        """Run a trial here, if one is assigned. A KeyboardInterrupt from its function must end the run."""
        self._launcher.run_trial()
        return None if self._thread.is_alive() else ""

    def cancel(self) -> None:
        """Do nothing: the agent leaves when the driver dismisses it, and a thread cannot be forced."""

    def wait(self, timeout: float) -> bool:
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._launcher.abandon()
        return True

    def _serve(self) -> None:
        Agent(self._task, self._context, launcher=self._launcher).run()


class InlineEngine(Engine):
    """Runs one worker in this process, so that breakpoints, ``pdb`` and profilers work as usual.

    Trials run one after the other in the thread that calls ``lagom``, ``ablate`` or ``run``. Callbacks and the display
    run between two trials. Ctrl-C in a trial, or ``q`` in ``pdb``, ends the search with the result so far.

    Nothing can kill a trial in the caller's process, so some things differ from other engines. A stop or a time limit
    takes effect at the trial's next report, or not at all without reports. Trials print to this process's output, and
    have no log files. As on all engines the function is a copy. It does not change variables of the caller's script.

    Example:
        >>> result = lagom(train_fn, space, engine="inline", n_trials=1)
    """

    name = "inline"
    isolation: Isolation = "none"

    def slots(self) -> int | None:
        return 1

    def default_workers(self) -> int:
        return 1

    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1")

    def await_work(self, runs: Sequence[EngineRun], over: threading.Event, seconds: float) -> None:
        if not any(isinstance(run, InlineRun) and run.await_trial(seconds) for run in runs):
            over.wait(seconds)

    def interruptible(self) -> AbstractContextManager[None]:
        return waits_end()

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        return [InlineRun(task, index, incarnation, pair) for index, pair in zip(indexes, keys, strict=True)]


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
