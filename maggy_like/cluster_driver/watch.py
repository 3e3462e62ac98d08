"""A run whose driver is elsewhere, shown from its files, and asked to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from maggy_like.cluster_driver.follow import Follower, LogLineReader
from maggy_like.cluster_driver.tasks import from_record
from maggy_like.display import Display, make_display
from maggy_like.display.base import LogLine, Snapshot, WorkerLine, draw
from maggy_like.display.lines import LineBuffer
from maggy_like.driver.followers import Callback, Callbacks, DisplayFollower, Listener, read_callbacks
from maggy_like.driver.loop import MAX_LINE_BYTES, MAX_LINES
from maggy_like.driver.state_machine.store_outage import STORE_PATIENCE
from maggy_like.errors import JournalError, UserError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import UNBOUNDED
from maggy_like.results.result import Result, RunActions
from maggy_like.results.runs import read_run
from maggy_like.storage.control_files import ControlFiles, DriverRecord, StopRequestRecord
from maggy_like.storage.journal import backend_of
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.study import Study
from optimizers.core.trial import TrialState

JOURNAL_LOOK = 1.0
"""Seconds between two reads of the journal."""


class Watcher:
    """Reads the files of a run for its displays and callbacks.

    Args:
        follower: Follower of the journal.
        base: Snapshot with what stays the same.
        began: When the run began, in Unix time.
        displays: Displays of the run.
        callbacks: Callbacks for each event from now on.
        reader: Reader of the driver's lines.
        stop: Called if a callback raises a KeyboardInterrupt or a SystemExit.

    Attributes:
        lines: Log lines for the displays.
        snapshot: The newest snapshot for the displays.
        callbacks: The callbacks. The caller begins them.
    """

    def __init__(
        self,
        follower: Follower,
        base: Snapshot,
        began: float,
        displays: Sequence[Display],
        callbacks: Sequence[Listener],
        reader: LogLineReader,
        stop: Callable[[BaseException], None],
    ) -> None:
        self.lines = LineBuffer(MAX_LINES, MAX_LINE_BYTES)
        self._follower = follower
        self._base = base
        self._began = began
        self._given = displays
        self._displays: list[DisplayFollower] = []
        self.callbacks = Callbacks(callbacks, lambda: follower.machine.study, self.say, stop, in_threads=True)
        self._reader = reader
        self._looked = float("-inf")
        self._served = time.monotonic()
        self._has_warned = False
        self.snapshot = self._draw()

    def begin(self) -> None:
        """Start the displays."""
        self._displays = [DisplayFollower(display, self, in_thread=True) for display in self._given]

    def look(self, *, now: bool = False) -> None:
        """Read what is new, about once per second.

        Args:
            now: Whether to read the journal even if it was just read.

        Raises:
            JournalError: The journal could not be read for ten minutes.
        """
        if now or time.monotonic() - self._looked >= JOURNAL_LOOK:
            self._read()
            self.lines.extend(self._reader.take())
            self._looked = time.monotonic()
        self.snapshot = self._draw()
        self.callbacks.look()

    def finish(self, ending: Ending, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """End the callbacks, and show the last state.

        Args:
            ending: How the run ended, as far as is known.
            is_hurried: Returns whether the user does not want to wait.
        """
        self.callbacks.finish(ending, is_hurried)
        self.snapshot = self._draw()
        for display in self._displays:
            display.finish(is_hurried)

    def say(self, text: str) -> None:
        """Show a line."""
        self.lines.append(LogLine(None, text))

    def _read(self) -> None:
        try:
            events = self._follower.look()
        except JournalError as error:
            if time.monotonic() - self._served > STORE_PATIENCE:
                raise
            if not self._has_warned:
                self._has_warned = True
                self.say(f"{error}; trying again, the run continues meanwhile")
            return
        self._served, self._has_warned = time.monotonic(), False
        for event, value in events:
            self.callbacks.call(event, value)

    def _draw(self) -> Snapshot:
        study, now = self._follower.machine.study, time.time()
        ended = self._follower.ended
        busy = worker_lines(study, now)
        going_on = Phase.SEARCHING if study.trials else Phase.STARTING
        if study.trials and study.trials[-1].training:
            going_on = Phase.TRAINING if study.trials[-1].is_final_training else Phase.CONFIRMING
        return draw(
            self._base,
            study,
            phase=going_on if ended is None else ended.status,
            elapsed=now - self._began if ended is None else ended.seconds,
            now=now,
            objective=self._base.objective or next((t.objective for t in study.trials if t.objective), None),
            workers=busy,
        )


def worker_lines(study: Study, now: float) -> list[WorkerLine]:
    """Return the busy workers that the journal has. Of several that run a trial together, it has the first."""
    running = [trial for trial in study.trials if trial.state is TrialState.RUNNING and trial.worker is not None]
    lines = [
        WorkerLine(
            trial.worker or 0,
            "",
            "busy",
            trial=trial.id,
            step=trial.step,
            budget=trial.budget if trial.budget < UNBOUNDED else 0,
            value=trial.last_value,
            seconds=max(0.0, now - (trial.started or now)),
        )
        for trial in running
    ]
    return sorted(lines, key=lambda line: line.index)


POLL = 0.1
"""Seconds between two snapshots."""

HOLD_LOOK = 5.0
"""Seconds between two checks whether a driver has the run."""

SUCCESSION_PATIENCE = 180.0
"""Seconds that Spark gets to restart the driver's task before the run counts as killed."""


def watch_run(run: Result, progress: bool | str, callbacks: Sequence[Callback], actions: RunActions) -> Result:
    """Implement :meth:`maggy_like.Result.watch`.

    Args:
        run: The run as it was loaded.
        progress: Display, as for :func:`maggy_like.lagom`.
        callbacks: Callbacks for all events.
        actions: Actions of the result.

    Raises:
        MaggyError: The error that a driver in the cluster recorded.
        JournalError: The journal could not be read for ten minutes.
    """
    display = make_display(progress)
    listeners = read_callbacks(callbacks, str(run.directory))
    files = ControlFiles(str(run.directory))
    follower = Follower(backend_of(str(run.directory)))
    record = _driver(files)
    base = _base(follower, run, record)
    began = record.began if record is not None else _begun(follower)
    stops: list[BaseException] = []
    watcher = Watcher(follower, base, began, [display], listeners, LogLineReader(files), stops.append)
    header, paths = follower.contents.header, RunPaths(run.directory, run.store)
    watcher.callbacks.begin(header.name, header.optimizer, paths, is_resumed=True, knows_all=True)
    watcher.begin()
    try:
        _follow(str(run.directory), files, follower, watcher, stops)
        watcher.look(now=True)
    except KeyboardInterrupt:
        return read_run(str(run.directory), actions)
    finally:
        watcher.finish(follower.ended.status if follower.ended is not None else Ending.STOPPED)
    result, record = read_run(str(run.directory), actions), _driver(files)
    if result.ending is Ending.ERROR and record is not None and record.error is not None:
        error = from_record(record.error)
        error.result = result
        raise error
    return replace(result, _is_shown=display.has_shown_summary)


def stop_run(journal: str) -> None:
    """Implement :meth:`maggy_like.Result.stop`.

    Raises:
        UserError: No driver would read the request.
    """
    backend, files = backend_of(journal), ControlFiles(journal)
    record = files.driver()
    if record is not None and not record.is_over and Follower(backend).ended is None:
        files.ask_to_stop(StopRequestRecord(record.run, Ending.STOPPED))
        return
    if backend.is_held():
        raise UserError(
            f"the driver of the run in {journal} is a process that cannot be stopped from elsewhere, unlike one with "
            "driver='cluster'; press Ctrl-C in that process, or call stop() of the handle of lagom(..., block=False)"
        )
    raise UserError(f"the run in {journal} has ended; there is nothing to stop")


def _follow(
    journal: str, files: ControlFiles, follower: Follower, watcher: Watcher, stops: Sequence[BaseException]
) -> None:
    """Show the run until it has ended, its driver has not returned, or a callback ends the watching.

    Raises:
        BaseException: The callback raised it.
    """
    backend = backend_of(journal)
    held = looked = time.monotonic()
    while follower.ended is None:
        watcher.look()
        if stops:
            raise stops[0]
        time.sleep(POLL)
        if time.monotonic() - looked < HOLD_LOOK:
            continue
        looked = time.monotonic()
        with contextlib.suppress(Exception):  # of any file system; the watcher reports it
            record = files.driver()
            patience = SUCCESSION_PATIENCE if record is not None and not record.is_over else 0.0
            if backend.is_held():
                held = looked
            elif looked - held > patience:
                return


def _driver(files: ControlFiles) -> DriverRecord | None:
    """Return the driver's record. None if there is none, or it cannot be read."""
    with contextlib.suppress(Exception):  # of any file system: the journal has the rest
        return files.driver()
    return None


def _begun(follower: Follower) -> float:
    """Return when the driver began or resumed the run, in Unix time."""
    begun = follower.contents.begun
    return follower.contents.header.created if begun is None else begun.time


def _base(follower: Follower, run: Result, record: DriverRecord | None) -> Snapshot:
    header = follower.contents.header
    return Snapshot(
        name=header.name,
        directory=str(run.directory),
        optimizer=header.optimizer,
        direction=run.direction,
        phase=Phase.STARTING,
        elapsed=0.0,
        objective=header.metrics[0] if header.metrics else None,
        others=run.others,
        n_trials=record.n_trials if record is not None else None,
        timeout=record.timeout if record is not None else None,
        is_ablation=bool(header.variants),
        guessed=header.directions == [None],
    )
