"""A run in the background, and what its caller can ask of it."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # it cannot be imported while the interpreter exits
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from maggy_like.argument_checks import seconds, whole
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.dashboard_link import Dashboard
from maggy_like.display.text import duration, number, place, tally, words
from maggy_like.driver.loop import STANDSTILL
from maggy_like.driver.run_spec import StopSwitch
from maggy_like.engines.base import Engine
from maggy_like.errors import MaggyError, UserError
from maggy_like.processes.stacks import stacks_of_run
from maggy_like.protocol.endings import Ending, Phase
from optimizers.checks import at_the_call, no_attribute
from optimizers.core.trial import TrialState
from optimizers.space import Config

MAX_LINES = 10_000
"""Log lines that are kept. The trials' log files have all of them."""


class Recorder:
    """A display that keeps the newest snapshot and lines for other threads."""

    keeps_lines = has_shown_summary = False

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None  # the newest snapshot. None before the first one
        self.has_begun = threading.Event()  # set when there is a snapshot, or will never be one
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES)
        self._live: dict[tuple[int | None, int | None], LogLine] = {}
        self._lock = threading.Lock()

    def start(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.has_begun.set()

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
        """Return the text of the newest lines of all trials or of one. Unfinished lines come last."""
        with self._lock:
            known = [*self._lines, *self._live.values()]
        return [line.text for line in known if trial is None or line.trial == trial][-lines:]


T = TypeVar("T")

_executed: contextvars.ContextVar[RunHandle[Any] | None] = contextvars.ContextVar("executed", default=None)
"""The run that a thread belongs to. The threads of its callbacks belong to it, too."""

EXIT_LOOK = 0.2
"""Seconds between two checks whether the interpreter exits."""


@dataclass(frozen=True)
class Status:
    """State of a run at one moment. ``print(handle.status())`` shows it on one line.

    Attributes:
        name: Name of the run.
        phase: ``starting``, ``searching`` or ``training``, or the ending: ``completed``, ``error``, ...
        elapsed: Seconds since the run began.
        counts: Number of trials by state.
        n_trials: Number of configurations to try. None for no limit.
        workers: Number of workers.
        objective: Name of the optimized metric, once known.
        best_trial: Number of the best trial so far.
        best_value: Its value.
        best_step: The step at which the value was measured.
        best_config: Its configuration.
        error: The error that has ended the run, in one line. Empty without one.
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
    error: str = ""

    def __str__(self) -> str:
        of = f" of {self.n_trials}" if self.n_trials else ""
        counted = (tally(self.counts) or ("0 trials" if of else "")) + of
        parts = [f"{self.name}: {words(self.phase)}, {duration(self.elapsed)}", counted]
        if self.best_trial is not None:
            where = place(self.best_trial, self.best_step)
            parts.append(f"best {self.objective or 'value'} {number(self.best_value)} {where}")
        return "; ".join(filter(None, [*parts, self.error]))


_ELSEWHERE = {
    **dict.fromkeys(("best_config", "best_value", "load_best", "trials"), "result(), which waits for the end"),
    **dict.fromkeys(("get", "join", "wait"), "result()"),
    **dict.fromkeys(("cancel", "kill", "shutdown", "terminate"), "stop()"),
    **dict.fromkeys(("done", "is_alive", "progress", "running"), "status()"),
    **dict.fromkeys(("log", "logs"), "tail()"),
    **dict.fromkeys(("stack", "traceback"), "stacks()"),
}
"""What a reader looks for in a handle."""


class RunHandle(Generic[T]):
    """A run in the background. ``lagom``, ``ablate`` and ``run`` return it with ``block=False``.

    Ctrl-C does not stop such a run. But on Spark without Spark Connect, PySpark itself then cancels all jobs of the
    session, which ends the run. If the interpreter exits and no thread waits for the result, the run is stopped. A run
    with ``driver="cluster"`` continues, and ``load_run(handle.directory).watch()`` follows it.

    Attributes:
        name: Name of the run.
        directory: The run's directory, as a path or URL.

    Example:
        >>> handle = lagom(train_fn, space, n_trials=1000, progress=False, block=False)
        >>> handle.stop()
        >>> result = handle.result()
        >>> print(handle.status())
        train_fn-20260831-101500-1a2b: stopped, 0:07; ...
    """

    def __init__(
        self, name: str, directory: Path | str, stop: StopSwitch, dashboard: Callable[[str, int], Dashboard]
    ) -> None:
        self.name = name
        self.directory = directory
        self.recorder = Recorder()
        self._stop = stop
        self._dashboard = dashboard
        self._future: Future[T] = Future()
        self._is_over = threading.Event()
        self._threads: list[Thread] = []
        self._waiting = 0
        self._lock = threading.Lock()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE)

    def begin(self, execute: Callable[[], T], engine: Engine, *, outlives: bool) -> None:
        """Run ``execute`` in a thread, and return once the run has begun. Called by the runtime.

        An error before that, such as a name in use, is raised here, since the caller may never ask for the result.

        Args:
            execute: Executes the run.
            engine: Engine that prepares ``execute`` for another thread.
            outlives: Whether the run continues after the end of this process.
        """
        inheriting = engine.inheriting(execute)
        within = contextvars.copy_context().run  # so that its output is in the notebook's cell of this call
        run = Thread(target=within, args=[self._execute, inheriting], name="maggy-run", daemon=outlives)
        self._threads.append(run)
        if not outlives:
            self._threads.append(Thread(target=self._stop_at_exit, name="maggy-exit", daemon=True))
        for thread in self._threads:
            thread.start()
        try:
            self.recorder.has_begun.wait()
        except BaseException:  # such as Ctrl-C: nobody has the handle to stop it
            self.stop()
            raise
        if self.recorder.snapshot is None:
            self.result()

    def status(self) -> Status:
        """Return the state of the run.

        Returns:
            The state at this moment.
        """
        seen = self.recorder.snapshot
        error = self._future.exception() if self._future.done() else None
        if error is not None:
            phase: Phase | Ending = Ending.ERROR
        else:
            phase = seen.phase if seen is not None else Phase.STARTING
        said = "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        if seen is None:
            return Status(self.name, phase, error=said)
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
            said,
        )

    def tail(self, trial: int | None = None, lines: int = 20) -> str:
        """Return the newest log lines.

        Args:
            trial: Number of the trial. Default all trials, and the runtime.
            lines: Number of lines. Default 20.

        Returns:
            The lines as one text.

        Raises:
            ConfigError: An argument is not an integer.
        """
        if trial is not None:
            whole("trial", trial, least=0)
        whole("lines", lines, least=1)
        return "\n".join(self.recorder.tail(trial, lines))

    def stacks(self) -> str:
        """Return where the running trials are: the Python stacks of their processes on this machine (Linux).

        Returns:
            The stacks as one text, for each process with the user's innermost line first. It is empty if no trial runs
            here in a process of its own.

        Example:
            >>> handle = lagom(train_fn, {"lr": [0.1, 0.2]}, optimizer="grid", block=False)  # doctest: +SKIP
            >>> print(handle.stacks())  # doctest: +SKIP
            trial 3, worker 0, process 4711: in train_fn (loader = iter(batches))
            ...
        """
        return stacks_of_run(self.name)

    def dashboard(self, port: int = 0) -> Dashboard:
        """Serve the run as a live page for browsers on this machine (see :meth:`maggy_like.Result.dashboard`).

        Args:
            port: Port. Default 0, any free one.

        Returns:
            The dashboard with its ``url`` and ``close()``. A notebook shows it as a frame in the cell.

        Raises:
            UserError: plotly is missing, or the port is in use.

        Example:
            >>> handle = lagom(train_fn, space, n_trials=1000, progress=False, block=False)
            >>> with handle.dashboard() as dashboard:
            ...     print(dashboard)
            http://127.0.0.1:...
            >>> handle.stop()
        """
        return self._dashboard(str(self.directory), port)

    def stop(self) -> None:
        """Stop the run as Ctrl-C does: running trials are cut off, and the run returns the result so far.

        Any thread may call it at any time. A run that has not begun stops as soon as it begins. After the end of the
        run, nothing happens. If the run has said that a write or the scheduler does not return, the run ends without
        it, and :meth:`result` raises a StoreError.
        """
        self._stop.stop()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end of the run, and return its result.

        Ctrl-C ends the wait, not the run.

        Args:
            timeout: Seconds to wait at most. Default no limit.

        Returns:
            What the call without ``block=False`` returns.

        Raises:
            TimeoutError: The run has not ended yet.
            UserError: A callback waits for its own run, which would never end, or ``timeout`` is not a number.
            MaggyError: An error ended the run, as without ``block=False``.
        """
        if timeout != 0:
            seconds("timeout", timeout)
        if _executed.get() is self and not self._future.done():
            raise UserError("a callback cannot wait for the end of its own run; use status(), or stop() to end the run")
        with self._lock:
            self._waiting += 1
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self._future.done():  # an error of the run itself
                raise
            raise TimeoutError(
                f"{self.name} has not ended after timeout={timeout} s and continues; call result() again, or stop()"
            ) from None
        except MaggyError as error:
            raise at_the_call(error) from error.__cause__
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
        except BaseException as error:  # result() raises it
            self._future.set_exception(error)
        finally:
            self._is_over.set()
            self.recorder.has_begun.set()

    def _stop_at_exit(self) -> None:
        """Stop the run once the main thread has ended, unless a thread waits for the result."""
        while threading.main_thread().is_alive() or self._waiting:
            if self._is_over.wait(EXIT_LOOK):
                return
        self.stop()
        while not self._is_over.wait(STANDSTILL):
            self.stop()  # leaves a driver that stands still
