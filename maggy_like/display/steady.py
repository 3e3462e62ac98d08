"""A display that goes on with plain lines where another one fails."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from maggy_like.display import SilentDisplay
from maggy_like.display.base import Display, LogLine, Snapshot
from maggy_like.display.plain import PlainDisplay

_log = logging.getLogger(__name__)


class SteadyDisplay:
    """Shows a run through a display, and by plain lines once that has raised: it must not end the run.

    The failure is logged once, with its traceback. Where plain lines cannot be written either (a closed stdout),
    nothing more is shown.

    Args:
        display: The one that was asked for.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._fallbacks: list[Callable[[], Display]] = [SilentDisplay, PlainDisplay]

    def start(self, snapshot: Snapshot) -> None:
        self._draw(snapshot, None)

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._draw(snapshot, lambda display: display.update(snapshot, lines))

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._draw(snapshot, lambda display: display.finish(snapshot, lines))

    def _draw(self, snapshot: Snapshot, draw: Callable[[Display], None] | None) -> None:
        """Draw, or start; a display that takes the place of another one is started first."""
        is_started = draw is not None
        while True:
            try:
                if not is_started:
                    self._display.start(snapshot)
                if draw is not None:
                    draw(self._display)
                return
            except Exception as error:
                is_started = False
                self._replace(error)

    def _replace(self, error: Exception) -> None:
        failed, self._display = self._display, self._fallbacks.pop()()
        if self._fallbacks:
            name = type(failed).__name__
            _log.warning("%s failed; the run continues, and is shown by plain lines", name, exc_info=error)
        if (release := getattr(failed, "release", None)) is not None:
            with contextlib.suppress(Exception):
                release()
