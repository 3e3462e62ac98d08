"""A live region at the bottom of a terminal, with log lines scrolling above it (rich)."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from maggy_like.display import progress, text
from maggy_like.display.base import TRIED, LogLine, Snapshot, WorkerLine
from maggy_like.display.plain import PlainDisplay
from maggy_like.display.progress import Bests, LiveLines
from optimizers.core.trial import TrialState

REDRAW_SECONDS = 0.2
STATE_STYLES = {
    TrialState.COMPLETED: "green",
    TrialState.STOPPED: "cyan",
    TrialState.PAUSED: "default",
    TrialState.FAILED: "red",
    TrialState.RUNNING: "blue",
    TrialState.PENDING: "dim",
}
TRIAL_STYLES = ("cyan", "magenta", "green", "yellow", "blue")
"""Colors of the terminal's own palette, so that they suit its background; red is for failures."""

CURVE_WIDTH = 40
_HEADER_LINES = 8  # rule, headline, bar, counts, best, its curve, "and N more", and the line where the cursor rests
_starting = threading.Lock()


class TerminalDisplay:
    """Draws a live region when it is called, at most five times per second of the search's time.

    What the process prints meanwhile appears above the live region. If another live region is on the screen already, of
    a second search or of the caller, plain lines are written above that one instead.

    Args:
        console: Where to draw. Default standard output.
    """

    keeps_lines = True
    has_shown_summary = False

    _first: Snapshot
    _live: Live
    _drawn: float

    def __init__(self, console: Console | None = None) -> None:
        # Without markup: rich would interpret a "[red]" that the caller prints.
        self._console = console or Console(markup=False, emoji=False, highlight=False)
        self._fallback: PlainDisplay | None = None
        self._lines = LiveLines()
        self._bests = Bests()

    def start(self, snapshot: Snapshot) -> None:
        self._first, self._drawn = snapshot, snapshot.elapsed
        self._bests.take(snapshot)
        with _starting:
            if hasattr(sys.stdout, "rich_proxied_file"):  # rich redirects the stream to a live region
                self._fallback = PlainDisplay()
            else:
                self._live = Live(
                    self._region(snapshot),
                    console=self._console,
                    auto_refresh=False,
                    transient=True,
                    # A stderr sent to a file stays there.
                    redirect_stderr=hasattr(sys.stderr, "isatty") and sys.stderr.isatty(),
                )
                # Releases the terminal also if an error prevents the call of finish.
                self._release = weakref.finalize(self, _stop, self._live)
                self._live.start(refresh=True)
        if self._fallback is not None:
            self._fallback.start(snapshot)

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        if self._fallback is not None:
            self._fallback.update(snapshot, lines)
            return
        self._first = progress.pace_from(self._first, snapshot)
        self._bests.take(snapshot)
        finished = self._lines.take(snapshot, lines)
        if due := snapshot.elapsed - self._drawn >= REDRAW_SECONDS:
            self._drawn = snapshot.elapsed
            self._live.update(self._region(snapshot))
        if not self._print_log(finished) and due:  # printing redraws the region, too
            self._live.refresh()

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        if self._fallback is not None:
            self._fallback.finish(snapshot, lines)
            self.has_shown_summary = True
            return
        try:
            self._print_log(self._lines.take(snapshot, lines))
        finally:
            self._release()
        summary = [Text(line) for line in progress.summary(snapshot)]
        summary[0].stylize("bold", 0, len(text.clean(snapshot.name)))
        self._print(summary)
        self.has_shown_summary = True

    def release(self) -> None:
        """Release the terminal."""
        if hasattr(self, "_release"):
            self._release()

    def _print_log(self, lines: Sequence[LogLine]) -> bool:
        shown = [Text.assemble((text.prefix(line), _trial_style(line.trial)), line.text) for line in lines]
        if shown:
            self._print(shown)
        return bool(shown)

    def _print(self, lines: Sequence[Text]) -> None:
        # Wrapped by the terminal and not by rich, so that a copied line stays one line.
        self._console.print(Group(*lines), soft_wrap=True)

    def _curve(self, snapshot: Snapshot) -> list[Text]:
        """Return the best value over time, once it has improved and if there is space."""
        has_room = self._console.height > 2 * _HEADER_LINES
        line = self._bests.line(snapshot.elapsed, CURVE_WIDTH) if has_room else ""
        return [Text(line, style="dim")] if line else []

    def _region(self, snapshot: Snapshot) -> RenderableType:
        width = self._console.width
        headline = Table.grid(expand=True, padding=(0, 1))
        headline.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        headline.add_column(no_wrap=True, justify="right")
        headline.add_row(
            Text.assemble((text.clean(snapshot.name), "bold"), "  ", (progress.goal(snapshot), "dim")),
            Text.assemble((progress.state(snapshot), "bold"), "  ", progress.clock(self._first, snapshot)),
        )
        found = snapshot.best_trial is not None or snapshot.pareto
        best = Text(progress.best(snapshot), style="bold" if found else "dim")
        best.append(f"  {text.config_text(snapshot.best_config or {})}", style="not bold")
        failures = [text.failure(line) for line in snapshot.failures[: text.MAX_FAILURES]]
        room = max(1, min(progress.MAX_WORKERS, self._console.height - _HEADER_LINES - len(failures)))
        shown, others = progress.busiest(snapshot.workers, room)
        live = list(self._lines.lines.values())[: max(0, room - len(shown))]
        parts: list[RenderableType] = [
            *(Text.assemble((text.prefix(line), _trial_style(line.trial)), line.text) for line in live),
            Text("─" * width, style="dim"),
            headline,
            *([_search_bar(snapshot, width), _counts(snapshot)] if snapshot.is_search else []),
            *([best, *self._curve(snapshot)] if snapshot.is_search and snapshot.finds_best else []),
            *_confirmation(snapshot, width),
            *_training(snapshot, width),
            *(Text(line, style="red") for line in failures),
        ]
        if shown:
            parts.append(_worker_table(shown, hosts=len({worker.host for worker in snapshot.workers}) > 1))
        if others:
            parts.append(Text(others, style="dim"))
        for part in parts:
            if isinstance(part, Text):
                part.no_wrap, part.overflow = True, "ellipsis"
        return Group(*parts)


def _stop(live: Live) -> None:
    if live.is_started:
        sys.stdout.flush()  # else a print without an end of line would be lost with the redirection
        live.stop()


def _trial_style(trial: int | None) -> str:
    return "dim" if trial is None else TRIAL_STYLES[trial % len(TRIAL_STYLES)]


def _bar(shares: Sequence[tuple[float, str, str]], width: int) -> Text:
    """Return a bar of ``width`` characters. Each share is (part of the whole, character, style)."""
    bar, done, total = Text(), 0, 0.0
    for share, character, style in shares:
        total += share
        end = round(max(0.0, min(1.0, total)) * width)  # steps may be negative
        bar.append(character * (end - done), style=style)
        done = end
    return bar.append("─" * (width - done), style="dim")


def _search_bar(snapshot: Snapshot, width: int) -> Text:
    if snapshot.n_trials:
        label = f" {progress.fraction(snapshot)}"
        # Thin for trials that have not run, so that the bar can be read without colors.
        shares = [
            (snapshot.counts.get(state, 0) / snapshot.n_trials, "━" if state in TRIED else "─", style)
            for state, style in STATE_STYLES.items()
        ]
    elif snapshot.timeout:
        label = f" {progress.fraction(snapshot)}"
        shares = [(snapshot.elapsed / snapshot.timeout, "━", "green")]
    else:
        return Text(progress.fraction(snapshot))
    return _bar(shares, max(0, width - len(label))).append(label)


def _confirmation(snapshot: Snapshot, width: int) -> list[Text]:
    """Return a line about the confirmation, and its bar."""
    line = snapshot.confirmation
    if line is None:
        return []
    return [Text(progress.confirmation(snapshot), style="bold"), _bar([(line.ended / line.most, "━", "blue")], width)]


def _training(snapshot: Snapshot, width: int) -> list[Text]:
    """Return a line about the training, and its bar."""
    line = snapshot.training
    if line is None:
        return []
    share = line.step / line.budget if line.budget > 1 else 0.0
    bar = [_bar([(share, "━", "blue")], width)] if share else []
    return [Text(progress.training(snapshot), style="bold"), *bar]


def _counts(snapshot: Snapshot) -> Text:
    words = [
        Text(text.tally(snapshot.counts, [state]), style=style)
        for state, style in STATE_STYLES.items()
        if snapshot.counts.get(state)
    ]
    return Text("  ").join(words) if words else Text("no trial yet", style="dim")


def _worker_table(workers: Sequence[WorkerLine], hosts: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    texts, numbers = 4 if hosts else 3, 3
    for column in range(texts + numbers):
        table.add_column(justify="left" if column < texts else "right", no_wrap=True, overflow="ellipsis")
    for worker in workers:
        cells = [Text(f"worker {worker.index}", style="dim")]
        if hosts:
            cells.append(Text(text.clean(worker.host), style="dim"))
        if worker.trial is None:
            cells.append(Text(text.clean(worker.state), style="red" if worker.state == "lost" else "dim"))
        else:
            steps = f"{worker.step}/{worker.budget}" if worker.budget else str(worker.step)
            share = worker.step / worker.budget if worker.budget else 0.0
            cells += [
                Text(f"trial {worker.trial}", style=_trial_style(worker.trial)),
                _bar([(share, "━", "blue")], 12),
                Text(steps),
                Text(text.number(worker.value)),
                Text(text.duration(worker.seconds), style="dim"),
            ]
        table.add_row(*cells)
    return table
