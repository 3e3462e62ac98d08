"""Values and tables as text: numbers, times, configurations and lines, without control characters."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from maggy_like.display.base import FailureLine, LogLine, Snapshot
from maggy_like.protocol.endings import Ending, Phase
from optimizers.core.direction import Direction, direction_hint
from optimizers.core.trial import TrialState
from optimizers.space import Config

LINE_LIMIT = 400
"""Characters shown of one log line. The trial's log file has the rest."""


MAX_FAILURES = 4
"""Kinds of failures shown, the most frequent first."""


STATES = (
    TrialState.COMPLETED,
    TrialState.STOPPED,
    TrialState.PAUSED,
    TrialState.FAILED,
    TrialState.RUNNING,
    TrialState.PENDING,
)
"""The order in which states are shown."""


# Escape sequences of ECMA-48: CSI (colors, cursor), OSC (titles, links; ended by BEL or ST), the short ones.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?")
# What is left of the C0 and C1 controls except the tab, and the marks that turn the direction of the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def duration(seconds: float | None) -> str:
    """Format seconds: ``0:31``, ``1:02:03``, ``2d 03:04:05``, or ``-`` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def number(value: float | None) -> str:
    """Format a number with at most five digits, and more only for large numbers. ``-`` for None."""
    if value is None:
        return "-"
    whole = math.isfinite(value) and 1e4 <= abs(value) < 1e9
    return f"{value:.0f}" if whole else f"{value:.5g}"


def pairs(config: Config) -> list[tuple[str, str]]:
    """Return names and values of a configuration as text."""
    return [
        (clean(name), number(value) if isinstance(value, float) else clean(str(value)))
        for name, value in config.items()
    ]


def config_text(config: Config) -> str:
    """Return a configuration on one line: ``lr=0.01, units=64``."""
    return ", ".join(f"{name}={value}" for name, value in pairs(config))


def clean(text: str, *, keeps_tabs: bool = False) -> str:
    """Return one line as a terminal shows it, without escape sequences and control characters.

    A progress bar that redraws itself with carriage returns has its last state. Long lines are cut. A tab becomes
    spaces, except in a line that a program has written for another program to read.
    """
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = next((state for state in reversed(text.split("\r")) if state.strip()), "")
    text = text.replace("\n", " ")
    text = _CONTROLS.sub("", text if keeps_tabs else text.expandtabs(4)).rstrip()
    text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be printed
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"


def readable(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return log lines ready to be shown: cleaned, split at line ends, without empty ones."""
    return [
        LogLine(line.trial, text, line.rank)
        for line in lines
        for part in line.text.split("\n")
        if (text := clean(part, keeps_tabs=True))
    ]


def prefix(line: LogLine) -> str:
    """Return the source of a line: ``[trial 7] ``, ``[trial 7 rank 1] ``, or nothing for the runtime."""
    rank = "" if line.rank is None else f" rank {line.rank}"
    return "" if line.trial is None else f"[trial {line.trial}{rank}] "


def tally(counts: Mapping[TrialState, int], states: Iterable[TrialState] = STATES) -> str:
    """Return counts in words, without zeros: ``5 completed, 1 failed, 3 running``."""
    return ", ".join(f"{counts[state]} {state.value}" for state in states if counts.get(state))


def words(phase: Phase | Ending, training: TrialState | None = None) -> str:
    """Return a phase or an ending in words. If the training failed, the run failed."""
    if training is TrialState.FAILED and isinstance(phase, Ending) and phase.is_planned:
        return "training failed"
    return clean("target reached" if phase is Ending.TARGET else phase)


def place(trial: int | None, step: int | None, *, failed: bool = False) -> str:
    """Return where a value was measured: ``at step 9 (trial 4)``, or ``(trial 4)`` without a step."""
    at = "" if step is None else f"at step {step} "
    return f"{at}(trial {trial}{', which failed later' if failed else ''})"


def failure(line: FailureLine) -> str:
    """Return failures of one kind in words: ``exception in 3 trials, last in trial 7: ValueError: nan``."""
    where = f"in trial {line.trial}" if line.count == 1 else f"in {line.count} trials, last in trial {line.trial}"
    return clean(f"{line.kind.replace('_', ' ')} {where}: {line.message}")


def guess(snapshot: Snapshot) -> str:
    """Return a hint if neither the user nor the objective's name decides the direction."""
    if not (snapshot.guessed and snapshot.is_search) or snapshot.direction is None or not snapshot.counts:
        return ""
    goals = [(snapshot.direction, snapshot.objective or "value"), *snapshot.others]
    hints = (direction_hint(name, cast(Direction, way), given=False) for way, name in goals)
    return clean("; ".join(filter(None, hints)))


Rows = Sequence[Sequence[str]]


def aligned(head: Sequence[str], rows: Rows) -> str:
    """Return a table as text, with two spaces between columns. Numbers are aligned to the right.

    Example:
        >>> print(aligned(["run", "best"], [["august", "0.97"], ["may", "0.9"]]))
        run     best
        august  0.97
        may      0.9
    """
    cells = [list(map(clean, row)) for row in (head, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(_is_number(cell) for cell in column[1:]) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def as_html(head: Sequence[str], rows: Rows) -> str:
    """Return a table as HTML. The cells are escaped. Numbers are aligned to the right, at their decimal points."""
    columns = [[row[place] for row in rows] for place in range(len(head))]
    numeric = [all(map(_is_number, column)) for column in columns]
    widest = [max((len(_decimals(cell)) for cell in column), default=0) for column in columns]

    def line(cells: Sequence[str], tag: str) -> str:
        parts = []
        for cell, right, most in zip(cells, numeric, widest, strict=True):
            mark = ' class="number"' if right else ""
            missing = "" if tag == "th" or not right else _DECIMALS[len(_decimals(cell)) : most]
            hidden = f'<span style="visibility:hidden" aria-hidden="true">{missing}</span>' if missing else ""
            parts.append(f"<{tag}{mark}>{html.escape(clean(cell))}{hidden}</{tag}>")
        return "".join(parts)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


_DECIMALS = "." + 30 * "0"
"""Stands for missing decimals, as wide as they are."""


def _decimals(cell: str) -> str:
    """Return a number's decimals, with the point."""
    _, point, rest = cell.partition(".")
    return point + rest


def _is_number(cell: str) -> bool:
    return bool(cell) and cell[0] in "-+<0123456789" and cell.strip("-+<0123456789.:eE% ") == ""
