"""One output of a Jupyter cell, redrawn in place."""

from __future__ import annotations

from collections.abc import Sequence

from IPython.display import DisplayHandle, display

from maggy_like.display import html, text
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.bests import Bests
from maggy_like.display.lines import LineBuffer
from maggy_like.display.live import LiveLines

REDRAW_SECONDS = 0.5
"""A full cell is almost 200 kB, and Jupyter drops what a kernel sends beyond 1 MB a second."""

LOG_LINES = 500
LOG_BYTES = 1 << 20
PLAIN_LINES = 10


class NotebookDisplay:
    """Draws HTML, with a text beside it for front ends that show none (a console, a converted notebook).

    It has its place in the cell that makes it, and is drawn there whatever cell and thread run later: so a run in the
    background, whose first drawing may come late, is not shown in the next cell. Nothing is drawn between two updates,
    and at most twice a second of the search's own time.
    """

    _first: Snapshot

    def __init__(self) -> None:
        place = {"text/html": "", "text/plain": ""}
        self._handle: DisplayHandle | None = display(place, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._log = LineBuffer(LOG_LINES, LOG_BYTES)
        self._live = LiveLines()
        self._bests = Bests()
        self._drawn = 0.0

    def start(self, snapshot: Snapshot) -> None:
        self._first, self._drawn = snapshot, snapshot.elapsed
        self._take(snapshot, ())
        self._draw(snapshot)

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._take(snapshot, lines)
        if snapshot.elapsed - self._drawn >= REDRAW_SECONDS:
            self._draw(snapshot)

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._take(snapshot, lines)
        self._draw(snapshot, final=True)

    def _take(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._log.extend(self._live.take(snapshot, lines))
        self._bests.take(snapshot)

    def _draw(self, snapshot: Snapshot, final: bool = False) -> None:
        self._drawn = snapshot.elapsed
        if self._handle is not None:  # None where IPython runs without a shell
            self._handle.update(self._bundle(snapshot, final), raw=True)  # type: ignore[no-untyped-call]

    def _bundle(self, snapshot: Snapshot, final: bool = False) -> dict[str, str]:
        log = [*self._log, *([] if final else self._live.lines.values())]
        newest = [text.prefix(line) + line.text for line in log[-PLAIN_LINES:]]
        state = text.summary(snapshot) if final else [text.status(self._first, snapshot)]
        return {
            "text/html": html.page(self._first, snapshot, self._bests.points, log, self._log.dropped),
            "text/plain": "\n".join([*state, *newest]),
        }
