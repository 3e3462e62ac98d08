"""The lines of trials that are still being written or redrawn, such as progress bars: one a trial and rank."""

from __future__ import annotations

from collections.abc import Sequence

from maggy_like.display import text
from maggy_like.display.base import LogLine, Snapshot

Key = tuple[int | None, int | None]


class LiveLines:
    """Parts finished lines from those that a later one replaces."""

    def __init__(self) -> None:
        self._lines: dict[Key, LogLine] = {}
        self._seen: set[Key] = set()

    @property
    def lines(self) -> dict[Key, LogLine]:
        """The newest state of each, by trial and rank."""
        return self._lines

    def take(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> list[LogLine]:
        """Take in new lines.

        Returns:
            Those that are finished, ready to be shown. What a trial showed last that is gone without a word, with its
            worker, is among them.
        """
        finished: list[LogLine] = []
        for line in lines:
            key = line.trial, line.rank
            if line.trial is not None and self._lines.pop(key, None) is not None:
                self._seen.discard(key)
            if not line.live:
                finished += text.readable([line])
            elif shown := text.clean(line.text):
                self._lines[key] = LogLine(line.trial, shown, line.rank, live=True)
        running = {worker.trial for worker in snapshot.workers}
        for key, line in list(self._lines.items()):
            if line.trial in running:
                self._seen.add(key)
            elif key in self._seen:
                self._seen.discard(key)
                finished.append(self._lines.pop(key))
        return finished
