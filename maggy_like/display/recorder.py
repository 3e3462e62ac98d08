"""A display that only remembers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from maggy_like.display.base import LogLine, Snapshot

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
