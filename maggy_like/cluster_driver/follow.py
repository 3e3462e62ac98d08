"""A run whose driver is elsewhere, followed by its files: its journal, and a file with its newest log lines."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from maggy_like.cluster_driver.tasks import from_record
from maggy_like.display import make_display
from maggy_like.display.base import LineBuffer, LogLine, Shown, Snapshot, WorkerLine, draw, draw_worker, missed_note
from maggy_like.driver.followers import Callback, Followers, read_callbacks
from maggy_like.driver.loop import MAX_LINE_BYTES, MAX_LINES
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.state_machine.failures import STORE_PATIENCE
from maggy_like.driver.stream import Backlog, Entry, JournalReader, read_after
from maggy_like.errors import JournalError, TrialsFailedError, UserError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.results.result import Result, RunActions
from maggy_like.results.runs import read_run, status_of
from maggy_like.storage.control_files import (
    ControlFiles,
    DriverRecord,
    ErrorRecord,
    LogLineRecord,
    LogLinesRecord,
    StopRequestRecord,
)
from maggy_like.storage.journal import RunStatus, backend_of, read_ends
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.study import Study
from optimizers.core.trial import Trial

POLL = 0.1
"""Seconds between two snapshots."""

LOOK = 1.0
"""Seconds between two reads of the journal."""

HOLD_LOOK = 5.0
"""Seconds between two checks whether a driver has the run."""

RECORD_PATIENCE = 15.0
"""Seconds that a driver in the cluster gets to write down its error after it has ended the journal."""

SUCCESSION_PATIENCE = 180.0
"""Seconds that Spark gets to restart the driver's task before the run counts as killed."""


class RunFiles:
    """A run as its files show it. Its followers read it like a run of this process.

    With ``base``, the snapshot with which a client has begun the run, followers get only later events. With ``take``,
    that function gets all events as they are read, and the backlog gets none.
    """

    def __init__(
        self,
        journal: str,
        base: Snapshot | None = None,
        take: Callable[[Sequence[Entry]], None] | None = None,
    ) -> None:
        self.files = ControlFiles(journal)
        self.lines = LineBuffer(MAX_LINES, MAX_LINE_BYTES)
        self._backend = backend_of(journal)
        self.reader = JournalReader(self._backend)
        for _ in self.reader.look() if base is not None else ():
            pass
        self.backlog = Backlog(partial(read_after, journal), self.reader.contents.last)
        self._take = take or self.backlog.put
        driver = self.driver()
        self._base = base or self._described(journal, driver)
        began = None if driver is None else driver.began
        self._began = began if base is None else time.time()
        self._log_lines = LogLineReader(self.files)
        self._looked = self._checked = float("-inf")
        self._served = self._held = time.monotonic()
        self._is_lost = self._has_warned = False
        self.is_behind = True  # whether the driver has written more than was read, as of the last read
        self.snapshot = self._draw()

    @property
    def study(self) -> Study:
        """The study as of the last read."""
        return self.reader.machine.study

    @property
    def has_all_lines(self) -> bool:
        """Whether the driver writes its log lines for others, and all of them were read."""
        return self._log_lines.has_all

    @property
    def ended(self) -> RunStatus | None:
        """How the run ended, as of the last read. None while it has not."""
        return self.reader.ended

    def _draw(self) -> Snapshot:
        study, now, ended = self.study, time.time(), self.ended
        phase = Phase.SEARCHING if study.trials else Phase.STARTING
        if study.trials and study.trials[-1].training:
            phase = Phase.TRAINING if study.trials[-1].is_final_training else Phase.CONFIRMING
        contents = self.reader.contents
        begun = contents.header.created if contents.begun is None else contents.begun.time
        if ended is None and self._is_lost:
            ended = status_of(contents, Ending.KILLED)
        return draw(
            self._base,
            study,
            phase=phase if ended is None else ended.status,
            elapsed=now - (self._began or begun) if ended is None else ended.seconds,
            now=now,
            objective=self._base.objective or self.reader.machine.objective,
            workers=_worker_lines(self.reader.machine.running, now),
        )

    def look(self, *, now: bool = False) -> None:
        """Read what is new, about once per second and for about a second. With ``now``, read all of it at once."""
        if now or time.monotonic() - self._looked >= LOOK:
            began = time.monotonic()
            self.is_behind = not self._read(None if now else began + LOOK)
            if not self.is_behind:
                self._looked = time.monotonic()
            self.lines.extend(self._log_lines.take())
        self.snapshot = self._draw()

    def _read(self, until: float | None) -> bool:
        """Read the journal, and return whether all of it is read. A driver may write faster than this process reads."""
        try:
            for entries in self.reader.look():
                self._take(entries)
                if until is not None and time.monotonic() >= until:
                    return False
            self._served, self._has_warned = time.monotonic(), False
        except JournalError as error:
            if time.monotonic() - self._served > STORE_PATIENCE:
                raise
            if not self._has_warned:
                self._has_warned = True
                self.say(f"{error}; trying again, the run continues meanwhile")
        return True

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """Show a line."""
        self.lines.append(LogLine(None, text, is_warning=is_warning))

    def is_over(self) -> bool:
        """Return whether the run has ended, or its driver is dead and has no successor.

        It checks every few seconds whether a driver has the run. Call :meth:`look` once more afterwards.
        """
        now = time.monotonic()
        if self.ended is None and now - self._checked >= HOLD_LOOK:
            self._checked = now
            with contextlib.suppress(Exception):  # of any file system; the reader of the journal reports it
                record = self.files.driver()
                patience = SUCCESSION_PATIENCE if record is not None and not record.is_over else 0.0
                if self._backend.is_held():
                    self._held = now
                self._is_lost = now - self._held > patience
        return self.ended is not None or self._is_lost

    def driver(self) -> DriverRecord | None:
        """Return the record of a driver in the cluster. None if there is none, or it cannot be read."""
        with contextlib.suppress(Exception):  # of any file system: the journal has the rest
            return self.files.driver()
        return None

    def _described(self, journal: str, driver: DriverRecord | None) -> Snapshot:
        header, directions = self.reader.contents.header, self.study.objectives.directions
        return Snapshot(
            name=header.name,
            directory=journal,
            optimizer=header.optimizer,
            direction=self.study.direction,
            phase=Phase.STARTING,
            elapsed=0.0,
            objective=header.metrics[0] if header.metrics else None,
            others=tuple(zip(directions[1:], header.metrics[1:], strict=True)),
            n_trials=driver.n_trials if driver is not None else None,
            timeout=driver.timeout if driver is not None else None,
            finds_best=header.finds_best,
            guessed=header.directions == [None],
        )


def _worker_lines(running: Sequence[Trial], now: float) -> list[WorkerLine]:
    """Return the busy workers that the journal has. Of several that run a trial together, it has the first."""
    lines = [
        draw_worker(trial.worker or 0, "", "busy", trial, seconds=max(0.0, now - (trial.started or now)))
        for trial in running
    ]
    return sorted(lines, key=lambda line: line.index)


def watch_run(run: Result, progress: bool | str, callbacks: Sequence[Callback], actions: RunActions) -> Result:
    """Implement :meth:`maggy_like.Result.watch`."""
    display = make_display(progress)
    listeners = read_callbacks(callbacks, str(run.directory))
    source = RunFiles(str(run.directory))
    stops: list[BaseException] = []
    header = source.reader.contents.header
    files = FileSettings(header.name, RunPaths(run.directory, run.store), resume=True)
    followers = Followers(source, listeners, stops.append, files, header.optimizer, in_threads=True)
    followers.show_on([display])
    try:
        is_over = False
        while not stops and (not is_over or followers.are_behind):  # a slow callback gets all events, however late
            is_over = source.is_over()
            source.look(now=is_over)
            followers.look()
            time.sleep(POLL * (not is_over or followers.are_behind))
        if stops:
            raise stops[0]
    except KeyboardInterrupt:
        pass
    finally:
        followers.finish(source.ended.status if source.ended is not None else Ending.STOPPED)
    shown = Shown.by([display])
    shown = replace(shown, lines=shown.lines and source.has_all_lines)
    result = replace(read_run(str(run.directory), actions), _shown=shown)
    if result.ending is Ending.ERROR and (found := error_of_driver(source)) is not None:
        error = from_record(found)
        error.result = result
        if isinstance(error, TrialsFailedError):
            error.has_shown_traceback = shown.lines
        raise error
    return result


def error_of_driver(source: RunFiles) -> ErrorRecord | None:
    """Return the error that ended a run, if its driver was a task of the cluster. It is written after the journal."""
    deadline = time.monotonic() + RECORD_PATIENCE
    while (record := source.driver()) is not None and not record.is_over and time.monotonic() < deadline:
        time.sleep(POLL)
    return None if record is None else record.error


def stop_run(journal: str) -> None:
    """Implement :meth:`maggy_like.Result.stop`."""
    backend, files = backend_of(journal), ControlFiles(journal)
    record, ends = files.driver(), read_ends(backend)
    if record is not None and not record.is_over and ends is not None and ends.ended is None:
        files.ask_to_stop(StopRequestRecord(record.run, Ending.STOPPED))
        return
    if backend.is_held():
        raise UserError(
            f"the driver of the run in {journal} is a process that cannot be stopped from elsewhere, unlike one with "
            "driver='cluster'; press Ctrl-C in that process, or call stop() of the handle of lagom(..., block=False)"
        )
    raise UserError(f"the run in {journal} has ended; there is nothing to stop")


MOST = 300
"""Lines in the file. A client that starts later, or is slow, does not see older ones."""

LONGEST = 2000
"""Characters of a line. The trial's log file has all of them."""

PAUSE = 1.0
"""Seconds between two writes."""


class LogLineWriter:
    """A display that writes the newest lines to a file for clients elsewhere. ``first`` is the number of the first."""

    keeps_lines = has_shown_summary = False

    def __init__(self, files: ControlFiles, run: str, first: int) -> None:
        self._files = files
        self._run = run
        self._next = first
        self._lines: deque[LogLineRecord] = deque(maxlen=MOST)
        self._is_new = False
        self._wrote = float("-inf")

    def start(self, snapshot: Snapshot) -> None:
        pass

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        for line in lines:
            if not line.live:  # a progress bar is redrawn too often for a file
                parts = line.text.split("\n")  # of a traceback, the last one says most
                self._lines.extend(
                    LogLineRecord(line.trial, part[:LONGEST], line.rank, line.is_warning) for part in parts
                )
                self._next += len(parts)
                self._is_new = True
        if self._is_new and time.monotonic() - self._wrote >= PAUSE:
            self._write()

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.update(snapshot, lines)
        if self._is_new:
            self._write()

    def _write(self) -> None:
        self._wrote = time.monotonic()
        with contextlib.suppress(Exception):  # of any file system: nothing depends on it
            self._files.publish_lines(LogLinesRecord(self._run, self._next - len(self._lines), tuple(self._lines)))
            self._is_new = False


class LogLineReader:
    """Reads each line of the driver once."""

    def __init__(self, files: ControlFiles) -> None:
        self.has_all = False  # whether there are lines, and none was missed
        self._files = files
        self._run = ""
        self._next = 0

    def take(self) -> list[LogLine]:
        """Return the new lines."""
        record = None
        with contextlib.suppress(Exception):
            record = self._files.lines()
        if record is None:
            return []
        if record.run != self._run:
            self._run, self._next = record.run, record.first
            self.has_all = record.first == 0
        missed = max(0, record.first - self._next)
        known = max(0, self._next - record.first)
        self.has_all &= not missed
        self._next = max(self._next, record.first + len(record.lines))
        new = record.lines[known:]
        found = [LogLine(line.trial, line.text, line.rank, is_warning=line.is_warning) for line in new]
        return missed_note(missed) + found
