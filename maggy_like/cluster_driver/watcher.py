"""Displays and callbacks of a run whose driver is elsewhere. They follow its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from maggy_like.cluster_driver.follow import Follower
from maggy_like.cluster_driver.log_lines import LogLineReader
from maggy_like.display import Display
from maggy_like.display.base import LogLine, Snapshot, WorkerLine
from maggy_like.display.drawing import draw
from maggy_like.display.lines import LineBuffer
from maggy_like.driver.callbacks import Callbacks, Listener
from maggy_like.driver.followers import DisplayFollower
from maggy_like.driver.loop import MAX_LINE_BYTES, MAX_LINES
from maggy_like.driver.state_machine.store_outage import STORE_PATIENCE
from maggy_like.errors import JournalError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import UNBOUNDED
from optimizers.core.study import Study
from optimizers.core.trial import TrialState

JOURNAL_LOOK = 1.0
"""Seconds between two looks at the journal."""


class Watcher:
    """Reads the files of a run for those who follow it.

    Args:
        follower: Of its journal.
        base: What stays the same in every snapshot.
        began: When the run began: Unix time.
        displays: Show it.
        callbacks: Get each event from now on.
        reader: Of the driver's lines.
        stop: Called if a callback raises a KeyboardInterrupt or a SystemExit.

    Attributes:
        lines: For the displays.
        snapshot: The newest, for the displays.
        callbacks: Those that were given; whoever makes the watcher begins them.
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
        self._told = False
        self.snapshot = self._draw()

    def begin(self) -> None:
        """Show that it begins."""
        self._displays = [DisplayFollower(display, self, in_thread=True) for display in self._given]

    def look(self, *, now: bool = False) -> None:
        """Take in what is new, about once per second.

        Args:
            now: Whether to look at the journal also if that was just done.

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
        """Let the callbacks end, and show the last state.

        Args:
            ending: How the run ended, as far as is known.
            is_hurried: Whether the user does not want to wait.
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
            if not self._told:
                self._told = True
                self.say(f"{error}; trying again, the run goes on meanwhile")
            return
        self._served, self._told = time.monotonic(), False
        for event, worth in events:
            self.callbacks.call(event, worth)

    def _draw(self) -> Snapshot:
        study, now = self._follower.machine.study, time.time()
        ended = self._follower.ended
        busy = worker_lines(study, now)
        is_training = bool(study.trials) and bool(study.trials[-1].training)
        going_on = Phase.TRAINING if is_training else Phase.SEARCHING if study.trials else Phase.STARTING
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
    """What each worker does, as far as the journal says: of several that run a trial together, the first."""
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
