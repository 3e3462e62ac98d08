"""A run in the background, and what its caller can ask of it."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # while the interpreter exits it could not be imported any more
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

from maggy_like.argument_checks import seconds, whole
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.text import duration, number, place, tally, words
from maggy_like.engines.base import Engine
from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending, Phase
from optimizers.core.trial import TrialState
from optimizers.space.config import Config

MAX_LINES = 10_000
"""Log lines that are remembered; the trials' log files have all."""


class Recorder:
    """Keeps the newest snapshot and lines, which other threads read.

    Attributes:
        snapshot: The newest; None before the first.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES)
        self._live: dict[tuple[int | None, int | None], LogLine] = {}
        self._lock = threading.Lock()

    def start(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.snapshot = snapshot
        with self._lock:
            for line in lines:
                self._live.pop((line.trial, line.rank), None)
                if not line.live:
                    self._lines.append(line)
                elif line.text:
                    self._live[line.trial, line.rank] = line

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.update(snapshot, lines)

    def tail(self, trial: int | None, lines: int) -> list[str]:
        """The text of the newest lines, of all or of one trial; lines that may yet change come last."""
        with self._lock:
            known = [*self._lines, *self._live.values()]
        return [line.text for line in known if trial is None or line.trial == trial][-lines:]


T = TypeVar("T")

_executed: contextvars.ContextVar[RunHandle[Any] | None] = contextvars.ContextVar("executed", default=None)
"""The run that a thread is part of; the threads of callbacks are, too."""

EXIT_LOOK = 0.2
"""Seconds between two looks at whether the interpreter exits."""


class StopSwitch:
    """Lets any thread stop a run, before it begins too."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in between
        self._stop: Callable[[], None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop the run: before it begins it takes effect as it does, after its end nothing happens."""
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()

    def attach(self, stop: Callable[[], None]) -> None:
        """Name what stops the run; called by the runner."""
        with self._lock:
            self._stop = stop
            if self._stopped:
                stop()


@dataclass(frozen=True)
class Status:
    """A run at one moment; ``print(handle.status())`` shows it in a line.

    Attributes:
        name: The run's name.
        phase: ``starting``, ``searching``, ``training``, ``completed``, ...; ``error`` where one ended it.
        elapsed: Seconds since it began.
        counts: How many trials are in which state.
        n_trials: How many configurations are wanted; None for no bound.
        workers: How many workers there are.
        objective: Name of the optimised metric, once known.
        best_trial: Number of the best trial so far.
        best_value: Its value.
        best_step: The step at which that was measured.
        best_config: Its configuration.
    """

    name: str
    phase: Phase | Ending
    elapsed: float = 0.0
    counts: Mapping[TrialState, int] = field(default_factory=dict)
    n_trials: int | None = None
    workers: int = 0
    objective: str | None = None
    best_trial: int | None = None
    best_value: float | None = None
    best_step: int | None = None
    best_config: Config | None = None

    def __str__(self) -> str:
        of = f" of {self.n_trials}" if self.n_trials else ""
        counted = (tally(self.counts) or ("0 trials" if of else "")) + of
        parts = [f"{self.name}: {words(self.phase)}, {duration(self.elapsed)}", counted]
        if self.best_trial is not None:
            where = place(self.best_trial, self.best_step)
            parts.append(f"best {self.objective or 'value'} {number(self.best_value)} {where}")
        return "; ".join(filter(None, parts))


class RunHandle(Generic[T]):
    """A run that goes on in the background: what ``lagom``, ``ablate`` and ``run`` return with ``block=False``.

    Ctrl-C does not reach such a run. When the interpreter exits and nobody waits for the result, the run is stopped;
    one whose driver is in the cluster goes on (``load_run(handle.directory).watch()`` follows it).

    Attributes:
        name: The run's name.
        directory: The run's folder.

    Example:
        >>> handle = lagom(train_fn, space, n_trials=100, progress=False, block=False)
        >>> print(handle.status())
        train-20260102-101500-1a2b: searching, 12 s; 4 completed, 2 running of 100; best accuracy 0.91 (trial 3, step 9)
        >>> handle.stop()
        >>> handle.result().best_config
    """

    def __init__(self, name: str, directory: Path | str, stop: StopSwitch) -> None:
        self.name = name
        self.directory = directory
        self.recorder = Recorder()
        self._stop = stop
        self._future: Future[T] = Future()
        self._is_over = threading.Event()
        self._threads: list[Thread] = []
        self._waiting = 0
        self._lock = threading.Lock()

    def begin(self, execute: Callable[[], T], engine: Engine, *, outlives: bool) -> None:
        """Run ``execute`` in a thread; called by the runtime.

        Args:
            execute: Executes the run.
            engine: Knows what the thread has of the one that calls this.
            outlives: Whether the run goes on by itself when this process ends.
        """
        inheriting = engine.inheriting(execute)
        within = contextvars.copy_context().run  # what is printed there stands in the notebook's cell of this call
        run = Thread(target=within, args=[self._execute, inheriting], name="maggy-run", daemon=outlives)
        self._threads.append(run)
        if not outlives:
            self._threads.append(Thread(target=self._stop_at_exit, name="maggy-exit", daemon=True))
        for thread in self._threads:
            thread.start()

    def status(self) -> Status:
        """How far the run is."""
        seen = self.recorder.snapshot
        if self._future.done() and self._future.exception() is not None:
            phase: Phase | Ending = Ending.ERROR
        else:
            phase = seen.phase if seen is not None else Phase.STARTING
        if seen is None:
            return Status(self.name, phase)
        return Status(
            self.name,
            phase,
            seen.elapsed,
            dict(seen.counts),
            seen.n_trials,
            len(seen.workers),
            seen.objective,
            seen.best_trial,
            seen.best_value,
            seen.best_step,
            seen.best_config,
        )

    def tail(self, trial: int | None = None, lines: int = 20) -> str:
        """The newest log lines.

        Args:
            trial: Of which trial; by default of all, and of the runtime.
            lines: How many.

        Raises:
            ConfigError: One is no whole number.
        """
        if trial is not None:
            whole("trial", trial, least=0)
        whole("lines", lines, least=1)
        return "\n".join(self.recorder.tail(trial, lines))

    def stop(self) -> None:
        """End the run as Ctrl-C would: running trials are cut off, and the result so far is the result.

        Any thread may call it, at any time: before the run begins it takes effect as it does, after it nothing happens.
        """
        self._stop.stop()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the run's end, and return what the call without ``block=False`` would have.

        Ctrl-C ends the wait, not the run.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.

        Raises:
            TimeoutError: The run has not ended yet.
            UserError: A callback of the run waits for it, which would never end, or ``timeout`` is no number.
            MaggyError: What ended it, as without ``block=False``.
        """
        if timeout != 0:
            seconds("timeout", timeout)
        if _executed.get() is self and not self._future.done():
            raise UserError("a callback cannot wait for the end of its own run; use status(), or stop() to end it")
        with self._lock:
            self._waiting += 1
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self._future.done():  # it is the run's own error
                raise
            raise TimeoutError(
                f"{self.name} has not ended after timeout={timeout} s and goes on; call result() again, or stop() it"
            ) from None
        finally:
            with self._lock:
                self._waiting -= 1
            if self._future.done():
                for thread in self._threads:
                    thread.join()

    def __repr__(self) -> str:
        return f"<RunHandle {self.status()}>"

    def _execute(self, execute: Callable[[], T]) -> None:
        _executed.set(self)
        try:
            self._future.set_result(execute())
        except BaseException as error:  # whoever asks for the result gets it
            self._future.set_exception(error)
        finally:
            self._is_over.set()

    def _stop_at_exit(self) -> None:
        """Stop the run once the main thread has ended, unless another one waits: the interpreter waits for its end."""
        while threading.main_thread().is_alive() or self._waiting:
            if self._is_over.wait(EXIT_LOOK):
                return
        self.stop()
