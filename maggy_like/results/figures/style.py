"""What all plots have in common: colors, symbols, labels, limits of axes, and which trials are drawn."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import plotly.graph_objects as go

from maggy_like.display.text import number, pairs
from optimizers.core.trial import Trial, TrialState
from optimizers.space import Config
from optimizers.space.domains import Constant, Domain, Float, Integer

T = TypeVar("T")

COLORS = {
    TrialState.COMPLETED: "#3b8bc4",
    TrialState.STOPPED: "#e69f00",
    TrialState.PAUSED: "#c27ba0",
    TrialState.FAILED: "#d9534f",
    TrialState.RUNNING: "#8a8f98",
    TrialState.PENDING: "#b9bdc4",
}
"""Of trials by their state. They are visible on white and on black."""

SYMBOLS = {
    TrialState.COMPLETED: "circle",
    TrialState.STOPPED: "diamond",
    TrialState.PAUSED: "square",
    TrialState.FAILED: "x",
    TrialState.RUNNING: "circle-open",
    TrialState.PENDING: "square-open",
}
"""Of trials by their state, for a reader who cannot distinguish the colors."""

BEST = "#2a9d6f"
"""Of the best so far."""

SERIES = ("#3b8bc4", "#e69f00", "#2a9d6f", "#d9534f", "#a08ad0", "#56b4e9", "#c27ba0", "#8a8f98")
"""Of what has no state: runs and metrics."""

DASHES = ("solid", "dash", "dot", "dashdot")

SCALE = [[0.0, "#8a8f98"], [0.5, "#3b8bc4"], [1.0, "#e8590c"]]
"""From worst to best, and from early to late: the end that matters stands out on white and on black."""

_FAR = 4.0
"""An axis leaves out values that are further from the middle half of the values than this many times its width."""


def new_figure(title: str, note: str = "", *, height: int = 420, x: str = "", y: str = "") -> go.Figure:
    """Make an empty figure of a height in pixels, with ``note`` below its title."""
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "subtitle": {"text": note}, "y": 1.0, "yanchor": "top", "pad": {"t": 16}},
        height=height,
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 104, "b": 50},  # above: title, note and legend
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0.0},
        xaxis_title=x,
        yaxis_title=y,
    )
    return figure


def drawn(items: Sequence[T], most: int, best: Iterable[T] = ()) -> list[T]:
    """Return the ``best`` and every k-th item, in order: about ``most`` in addition to the best."""
    if len(items) <= most:
        return list(items)
    kept = {id(item) for item in best} | {id(item) for item in items[:: math.ceil(len(items) / most)]}
    return [item for item in items if id(item) in kept]


def share_note(shown: int, total: int, what: str = "trials") -> str:
    """Return a sentence if not all are drawn, else an empty text."""
    return "" if shown == total else f"{shown:,} of {total:,} {what} are drawn, the best among them. "


def ranked(trials: Sequence[tuple[Trial, float]], direction: str) -> list[tuple[Trial, float]]:
    """Sort trials with their values, the best first."""
    return sorted(trials, key=lambda each: each[1], reverse=direction == "max")


def near(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the range of an axis that leaves out extreme values. None if there are none."""
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
    """Return a sentence if an axis leaves values out, else an empty text."""
    return "" if limits is None else "Extreme values lie outside; double-click shows them. "


def hover(trial: Trial, *lines: str) -> str:
    """Return the text of a trial's hover label, which plotly reads as HTML."""
    config = [f"{html.escape(name)} = {html.escape(_short(value))}" for name, value in pairs(trial.config)]
    more = [f"and {len(config) - 12} more"] if len(config) > 12 else []
    return "<br>".join([f"<b>trial {trial.id}</b>, {trial.state}", *map(html.escape, lines), *config[:12], *more])


def label(text: str, most: int = 40) -> str:
    """Escape a text for plotly. Of more than ``most`` characters both ends are kept, since paths differ in either."""
    return html.escape(_short(text, most), quote=False)


def is_numeric(domain: Domain) -> bool:
    """Return whether the domain's values are on an axis of numbers."""
    return isinstance(domain, Float | Integer)


def is_log(domain: Domain) -> bool:
    """Return whether that axis is logarithmic."""
    return isinstance(domain, Float | Integer) and domain.log


def level(config: Config, name: str) -> str:
    """Return the value of a parameter without such an axis, as text. ``-`` if it is inactive."""
    return _text(config[name]) if name in config else "-"


def levels(domain: Domain, name: str, configs: Iterable[Config]) -> list[str]:
    """Return the texts of a parameter's values in some configurations, in the order of the domain; ``-`` comes last."""
    places = {level(config, name): domain.to_unit(config[name]) if name in config else math.inf for config in configs}
    return sorted(places, key=places.__getitem__)


def is_shown(domain: Domain) -> bool:
    """Return whether a parameter varies."""
    return not isinstance(domain, Constant)


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _short(text: str, most: int = 40) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


Style = dict[str, object]
"""The style of a line, as plotly takes it."""


def series(place: int, width: float = 1.5) -> Style:
    """Return the style of a series. Neighbors differ in color, and in their dashes."""
    return {"color": SERIES[place % len(SERIES)], "dash": DASHES[place % len(DASHES)], "width": width}


def whole_ticks(numbers: Iterable[float]) -> dict[str, object]:
    """Return the settings of an axis of integers up to the largest one: a short axis would have ticks between."""
    return {"dtick": 1} if max(numbers, default=0) <= _FEW else {}


_FEW = 10


def seam(at: float) -> dict[str, object]:
    """Return a line where a driver resumed the run."""
    line = {"color": "#8a8f98", "dash": "dot", "width": 1}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line, "label": {
        "text": "resumed", "textposition": "end", "font": {"size": 10, "color": "#8a8f98"}}}  # fmt: skip
