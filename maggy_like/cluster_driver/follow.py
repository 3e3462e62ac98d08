"""A run whose driver is elsewhere, read from its files: its journal, and a file with its newest log lines."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from maggy_like.display.base import LogLine, Snapshot, WorkerLine, draw
from maggy_like.display.lines import LineBuffer
from maggy_like.driver.loop import MAX_LINE_BYTES, MAX_LINES
from maggy_like.driver.state_machine.store_outage import STORE_PATIENCE
from maggy_like.driver.stream import JournalReader, read_after
from maggy_like.errors import JournalError
from maggy_like.protocol.endings import Phase
from maggy_like.protocol.messages import UNBOUNDED
from maggy_like.storage.control_files import ControlFiles, DriverRecord, LogLineRecord, LogLinesRecord
from maggy_like.storage.journal import RunStatus, backend_of
from maggy_like.trackers.backlog import Backlog
from optimizers.core.study import Study
from optimizers.core.trial import TrialState

LOOK = 1.0
"""Seconds between two reads of the journal."""

HOLD_LOOK = 5.0
"""Seconds between two checks whether a driver has the run."""

SUCCESSION_PATIENCE = 180.0
"""Seconds that Spark gets to restart the driver's task before the run counts as killed."""


class RunFiles:
    """A run as its files show it. Its followers read it like a run of this process.

    Args:
        journal: Folder of the journal.
        base: Snapshot with what stays the same. Default from the journal.
        is_new: If True, followers get only later events.

    Attributes:
        files: The control files.
        lines: Log lines for the displays.
        backlog: The newest events for callbacks and trackers.
        reader: The reader of the journal.
        began: When the driver began, in Unix time. Default from the journal.
        snapshot: The state of the run as of the last look.

    Raises:
        JournalError: The journal cannot be read.
    """

    def __init__(self, journal: str, base: Snapshot | None = None, *, is_new: bool = False) -> None:
        self.files = ControlFiles(journal)
        self.lines = LineBuffer(MAX_LINES, MAX_LINE_BYTES)
        self._backend = backend_of(journal)
        self.reader = JournalReader(self._backend)
        for _ in self.reader.look() if is_new else ():
            pass
        self.backlog = Backlog(partial(read_after, journal), self.reader.contents.last)
        driver = self.driver()
        self.began = None if driver is None else driver.began
        self._base = base or self._described(journal, driver)
        self._log_lines = LogLineReader(self.files)
        self._looked = self._checked = float("-inf")
        self._served = self._held = time.monotonic()
        self._is_lost = self._has_warned = False
        self.snapshot = self._draw()

    @property
    def study(self) -> Study:
        """The study as of the last read."""
        return self.reader.machine.study

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
        return draw(
            self._base,
            study,
            phase=phase if ended is None else ended.status,
            elapsed=now - (self.began or begun) if ended is None else ended.seconds,
            now=now,
            objective=self._base.objective or next((t.objective for t in study.trials if t.objective), None),
            workers=_worker_lines(study, now),
        )

    def look(self, *, now: bool = False) -> None:
        """Read what is new, about once per second and for about a second.

        Args:
            now: Whether to read even if it was just read, and to the end.

        Raises:
            JournalError: The journal could not be read for ten minutes.
        """
        if now or time.monotonic() - self._looked >= LOOK:
            began = time.monotonic()
            if self._read(None if now else began + LOOK):
                self._looked = time.monotonic()
            self.lines.extend(self._log_lines.take())
        self.snapshot = self._draw()

    def _read(self, until: float | None) -> bool:
        """Read the journal, and return whether all of it is read. A driver may write faster than this process reads."""
        is_complete = True
        try:
            for entries in self.reader.look():
                self.backlog.put(entries)
                if until is not None and time.monotonic() >= until:
                    is_complete = False
                    break
            self._served, self._has_warned = time.monotonic(), False
        except JournalError as error:
            if time.monotonic() - self._served > STORE_PATIENCE:
                raise
            if not self._has_warned:
                self._has_warned = True
                self.say(f"{error}; trying again, the run continues meanwhile")
        return is_complete

    def say(self, text: str) -> None:
        """Show a line."""
        self.lines.append(LogLine(None, text))

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
            is_ablation=bool(header.variants),
            guessed=header.directions == [None],
        )


def _worker_lines(study: Study, now: float) -> list[WorkerLine]:
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


MOST = 300
"""Lines in the file. A client that starts later, or is slow, does not see older ones."""

LONGEST = 2000
"""Characters of a line. The trial's log file has all of them."""

PAUSE = 1.0
"""Seconds between two writes."""


class LogLineWriter:
    """A display that writes the newest lines to a file for clients elsewhere.

    Args:
        files: Control files of the run.
        run: Identifier of this call of ``lagom``.
        first: Number of the first line.
    """

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
                self._lines.extend(LogLineRecord(line.trial, part[:LONGEST], line.rank) for part in parts)
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
    """Reads each line of the driver once.

    Args:
        files: Control files of the run.
    """

    def __init__(self, files: ControlFiles) -> None:
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
        missed = record.first - self._next
        found = [LogLine(line.trial, line.text, line.rank) for line in record.lines[max(0, -missed) :]]
        self._next = max(self._next, record.first + len(record.lines))
        if missed > 0:
            notice = f"{missed} lines came too fast to be shown; the trials' log files have them"
            return [LogLine(None, notice), *found]
        return found
