"""What all pictures share: colours, layout, and how many of a search's trials are drawn."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import plotly.graph_objects as go

from maggy_like.display.text import number, pairs
from optimizers.core.trial import Trial, TrialState
from optimizers.space.config import Config
from optimizers.space.domain import Domain
from optimizers.space.domains import Constant, Float, Integer

T = TypeVar("T")

COLOURS = {
    TrialState.COMPLETED: "#3b8bc4",
    TrialState.STOPPED: "#e69f00",
    TrialState.PAUSED: "#a08ad0",
    TrialState.FAILED: "#d9534f",
    TrialState.RUNNING: "#8a8f98",
    TrialState.PENDING: "#b9bdc4",
}
"""Of trials by their state; on white and on black."""

BEST = "#2a9d6f"
"""Of the best so far."""

SERIES = ("#3b8bc4", "#e69f00", "#2a9d6f", "#d9534f", "#a08ad0", "#56b4e9", "#c27ba0", "#8a8f98")
"""Of whatever has no state: runs, metrics."""

SCALE = [[0.0, "#8a8f98"], [0.5, "#3b8bc4"], [1.0, "#e8590c"]]
"""From worst to best, and from early to late: the end that matters stands out on white and on black."""

_FAR = 4.0
"""An axis leaves out what lies further from the middle half of the values than this many times its width."""


def picture(title: str, note: str = "", *, height: int = 420, x: str = "", y: str = "") -> go.Figure:
    """An empty picture.

    Args:
        title: What it shows.
        note: What a reader must know of it; below the title.
        height: In pixels.
        x: Title of the axis.
        y: The other one's.
    """
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "subtitle": {"text": note}},
        height=height,
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 80, "b": 50},
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0.0},
        xaxis_title=x,
        yaxis_title=y,
    )
    return figure


def drawn(items: Sequence[T], most: int, best: Iterable[T] = ()) -> list[T]:
    """At most about ``most`` of them, in order: the ``best``, and every k-th of all.

    Args:
        items: What could be drawn.
        most: How many there may be, beside the best.
        best: What must be among them.
    """
    if len(items) <= most:
        return list(items)
    kept = {id(item) for item in best} | {id(item) for item in items[:: math.ceil(len(items) / most)]}
    return [item for item in items if id(item) in kept]


def share_note(shown: int, total: int, what: str = "trials") -> str:
    """A sentence where not all are drawn; empty where all are."""
    return "" if shown == total else f"{shown:,} of {total:,} {what} are drawn, the best among them. "


def ranked(trials: Sequence[tuple[Trial, float]], direction: str) -> list[tuple[Trial, float]]:
    """Trials and their values, the best first."""
    return sorted(trials, key=lambda each: each[1], reverse=direction == "max")


def near(values: Iterable[float]) -> tuple[float, float] | None:
    """The range of an axis that leaves out what lies far from the other values; None where nothing does."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if len(ordered) < 8:
        return None
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    reach = _FAR * (high - low)
    inner = [value for value in ordered if low - reach <= value <= high + reach]
    if reach == 0.0 or len(inner) == len(ordered):
        return None
    margin = 0.05 * (inner[-1] - inner[0])
    return inner[0] - margin, inner[-1] + margin


def far_note(limits: tuple[float, float] | None) -> str:
    """A sentence where an axis leaves values out."""
    return "" if limits is None else "Extreme values lie outside; double-click shows them. "


def hover(trial: Trial, *lines: str) -> str:
    """The text of a trial's hover label: plotly reads HTML there, so what is not ours is escaped."""
    config = [f"{html.escape(name)} = {html.escape(_short(value))}" for name, value in pairs(trial.config)]
    more = [f"and {len(config) - 12} more"] if len(config) > 12 else []
    return "<br>".join([f"<b>trial {trial.id}</b>, {trial.state}", *map(html.escape, lines), *config[:12], *more])


def label(text: str, most: int = 40) -> str:
    """A text as plotly shall show it: as it is, and not as HTML; of a longer one both ends, for paths differ in either.

    Args:
        most: How many characters to show.
    """
    return html.escape(_short(text, most), quote=False)


def is_numeric(domain: Domain) -> bool:
    """Whether the domain's values lie on an axis of numbers."""
    return isinstance(domain, Float | Integer)


def is_log(domain: Domain) -> bool:
    """Whether that axis is logarithmic."""
    return isinstance(domain, Float | Integer) and domain.log


def level(config: Config, name: str) -> str:
    """A value of a parameter without such an axis, as text; ``-`` where it is inactive."""
    return _text(config[name]) if name in config else "-"


def levels(domain: Domain, found: Iterable[str]) -> list[str]:
    """Those texts in the domain's order, and of what was found only."""
    known = [_text(value) for value in domain.grid(domain.size or 1)]
    found = set(found)
    return [text for text in dict.fromkeys(known) if text in found] + sorted(found - set(known))


def is_shown(domain: Domain) -> bool:
    """Whether a parameter varies at all."""
    return not isinstance(domain, Constant)


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _short(text: str, most: int = 40) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"
