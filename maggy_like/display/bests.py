"""The best values of a search in the order in which they were found: what its curve shows."""

from __future__ import annotations

import math

from maggy_like.display import text
from maggy_like.display.base import Snapshot

MAX_BESTS = 120
"""Points that are kept; a finer line cannot be seen."""

_BARS = "▁▂▃▄▅▆▇█"


class Bests:
    """Elapsed seconds and value of each new best.

    Attributes:
        points: In order of time, the newest always among them.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def take(self, snapshot: Snapshot) -> None:
        """Look for a new best."""
        value = snapshot.best_value
        if value is not None and (not self.points or self.points[-1][1] != value):
            self.points.append((snapshot.elapsed, value))
            if len(self.points) > MAX_BESTS:
                del self.points[1:-1:2]

    def line(self, end: float, width: int) -> str:
        """The curve in a line of text, from the first value to the last; nothing before there are two.

        Args:
            end: Elapsed seconds at its right end.
            width: Characters of the curve itself.

        Example:
            >>> bests.line(31.0, 8)
            '0.91 ▁▁▁▄▄▄▄█ 0.973  0:04 to 0:31'
        """
        points = [(seconds, value) for seconds, value in self.points if math.isfinite(value)]
        if len(points) < 2:
            return ""
        low, high = min(value for _, value in points), max(value for _, value in points)
        span = (high / 2 - low / 2) or 1.0  # halved first: the difference of two huge values is infinite
        begin = points[0][0]
        bars = ""
        for place in range(1, width + 1):
            now = begin + (end - begin) * place / width
            value = next(value for seconds, value in reversed(points) if seconds <= now or seconds == begin)
            bars += _BARS[round((value / 2 - low / 2) / span * (len(_BARS) - 1))]
        first, last = text.number(points[0][1]), text.number(points[-1][1])
        return f"{first} {bars} {last}  {text.duration(begin)} to {text.duration(end)}"
