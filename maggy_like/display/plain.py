"""Lines for a stream that is not a terminal: a CI log, a file, a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from maggy_like.display import progress, text
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.progress import Key, LiveLines

STATUS_SECONDS = 5.0
QUIET_SECONDS = 60.0
"""Seconds between two status lines without news, so that the log of a long job stays readable."""

LIVE_SECONDS = 30.0
"""Seconds between two states of a line that a trial redraws in place, such as a progress bar."""


class PlainDisplay:
    """Writes log lines, and from time to time a status line, to ``sys.stdout``.

    Example::

        [trial 7] epoch 3: accuracy 0.91
        [12/30] best 0.973 at step 9 (trial 4) | 11 completed, 1 failed, 3 running | 0:31, about 0:40 left
    """

    keeps_lines = True
    has_shown_summary = False

    _first: Snapshot
    _last: Snapshot

    def __init__(self) -> None:
        self._live = LiveLines()
        self._shown: dict[Key, float] = {}

    def start(self, snapshot: Snapshot) -> None:
        self._first = self._last = snapshot
        name, directory = text.clean(snapshot.name), text.clean(snapshot.directory)
        _write([f"{name}: {progress.goal(snapshot)}, files in {directory}"])

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._first = progress.pace_from(self._first, snapshot)
        out = [
            text.prefix(line) + line.text for line in (*self._live.take(snapshot, lines), *self._due_states(snapshot))
        ]
        if self._is_due(snapshot):
            out.append(progress.status(self._first, snapshot))
            self._last = snapshot
        _write(out)

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        finished = self._live.take(snapshot, lines)
        _write([text.prefix(line) + line.text for line in finished] + progress.summary(snapshot))
        self.has_shown_summary = True

    def _due_states(self, snapshot: Snapshot) -> list[LogLine]:
        """Return lines that are still being redrawn, from time to time."""
        states, now = self._live.lines, snapshot.elapsed
        self._shown = {key: self._shown.get(key, now) for key in states}
        due = [key for key, shown in self._shown.items() if now - shown >= LIVE_SECONDS]
        self._shown |= dict.fromkeys(due, now)
        return [states[key] for key in due]

    def _is_due(self, snapshot: Snapshot) -> bool:
        last, waited = self._last, snapshot.elapsed - self._last.elapsed
        # Compared as text: the same text is not news, and a NaN differs from itself.
        news = progress.best(snapshot) != progress.best(last)
        changed = text.tally(snapshot.counts) != text.tally(last.counts) or (
            snapshot.confirmation,
            snapshot.training,
        ) != (last.confirmation, last.training)
        return news or waited >= (STATUS_SECONDS if changed else QUIET_SECONDS)


def _write(lines: Sequence[str]) -> None:
    # The stream is read each time, since users redirect it. One call writes all lines, so that those of two searches do
    # not mix. What it cannot encode is replaced, since a log in ASCII must not end a search. It may be missing, or have
    # only write().
    stream = sys.stdout
    if lines and stream is not None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write("".join(f"{line}\n" for line in lines).encode(encoding, "replace").decode(encoding))
        if hasattr(stream, "flush"):
            stream.flush()
