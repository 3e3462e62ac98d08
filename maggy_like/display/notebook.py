"""The display in a notebook: one output of a cell, redrawn in place. Its HTML has no state and no scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from IPython.display import DisplayHandle, display

from maggy_like.display import progress, text
from maggy_like.display.base import LineBuffer, LogLine, Snapshot, WorkerLine
from maggy_like.display.progress import Bests, LiveLines
from optimizers.core.trial import TrialState

CURVE_SIZE = (240.0, 44.0)

MAX_LOG_CHARACTERS = 120_000
"""Characters of HTML that log lines may take, so that the whole cell stays below 200 kB."""

MAX_CHOICES = 100
"""Trials of the log, the newest ones, among which a reader can choose."""

# Text has JupyterLab's colors, else VS Code's, else the page's. The accents are visible on white and on black, and
# lines and fills are half transparent greys, so both themes look right. The rules of the table override JupyterLab's,
# which align cells to the right and stripe rows.
STATE_COLORS = {
    TrialState.COMPLETED: "#2e9e5b",
    TrialState.STOPPED: "#1c97b0",
    TrialState.PAUSED: "#8b95a3",
    TrialState.FAILED: "#d64545",
    TrialState.RUNNING: "rgba(66,133,224,.55)",
    TrialState.PENDING: "rgba(128,128,128,.5)",
}
ACCENT = "#2f83d6"
TRIAL_COLORS = ("#2f83d6", "#b8589f", "#2b9457", "#b97a1b", "#8272e0", "#14939e")

_STYLE = """<style>
.maggy { display: flex; flex-direction: column; max-width: 980px; padding: 4px 2px;
  font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif);
  color: var(--jp-ui-font-color1, var(--vscode-foreground, inherit)); font-variant-numeric: tabular-nums; }
.maggy .row { display: flex; flex-wrap: wrap; align-items: baseline; gap: 2px 14px; margin: 6px 0; }
.maggy .best { align-items: center; min-height: 70px; }
.maggy .config { min-height: 20px; }
.maggy .end { margin-left: auto; }
.maggy .soft { opacity: .65; }
.maggy .name { font-size: 15px; font-weight: 600; }
.maggy .value { font-size: 24px; font-weight: 600; line-height: 1.2; }
.maggy .track { display: flex; overflow: hidden; height: 8px; border-radius: 4px;
  background: rgba(128,128,128,.22); }
.maggy .dot { display: inline-block; width: 8px; height: 8px; border-radius: 4px; margin-right: 5px; }
.maggy .pair { padding: 0 7px; border-radius: 9px; background: rgba(128,128,128,.16);
  overflow-wrap: anywhere; }
.maggy svg { display: block; overflow: visible; max-width: 100%; }
.maggy svg text { fill: currentColor; font-size: 10px; opacity: .65; }
.maggy .hit { fill: transparent; }
.maggy .hit:hover { fill: #2f83d6; fill-opacity: 1; }
.maggy .failures { margin: 6px 0; padding: 2px 10px; border-left: 3px solid #d64545; overflow-wrap: anywhere; }
.maggy .scroll { overflow-x: auto; }
.maggy label { cursor: pointer; }
.maggy input { margin: 0 6px 0 0; vertical-align: -2px; }
.maggy:has(.fold:not(:checked)) { min-height: 0 !important; }
.maggy:has(.fold:not(:checked)) .log { display: none; }
.maggy select { color: inherit; background: rgba(128,128,128,.16); border: 0; border-radius: 4px; }
.maggy option { color: black; background: white; }
.maggy .scroll table { width: 100%; margin: 8px 0; table-layout: auto; border-collapse: collapse; font-size: 12px;
  color: inherit; }
.maggy .scroll tr { background: none !important; }
.maggy .scroll th, .maggy .scroll td { padding: 2px 8px; text-align: left; background: none; border: 0;
  border-top: 1px solid rgba(128,128,128,.22); white-space: nowrap; }
.maggy .scroll th { font-weight: 400; opacity: .65; border-top: 0; }
.maggy .scroll .number { text-align: right; }
.maggy .log { display: flex; flex: 1 1 0; flex-direction: column-reverse; min-height: 96px; overflow: auto;
  padding: 6px 8px; border: 1px solid rgba(128,128,128,.3); border-radius: 4px;
  font: 12px/1.45 var(--jp-code-font-family, ui-monospace, monospace); }
.maggy .log > div { margin-bottom: auto; }
.maggy .line { white-space: pre-wrap; overflow-wrap: anywhere; }
</style>"""


def page(
    first: Snapshot,
    now: Snapshot,
    bests: Sequence[tuple[float, float]],
    log: Sequence[LogLine],
    trimmed: int,
) -> str:
    """Return the HTML of a cell. After the end of the run it has no workers, and the log has their place.

    In a notebook that is not trusted, JupyterLab removes styles and the tags of the curve, so spaces separate words.

    The cell has the same height from the start on: the log gives way to new lines above it. A cell that is redrawn must
    not move those below it.

    ``first`` is the first snapshot, for the time left. The log lines are cleaned, the oldest first.
    """
    search = [_progress(now)] if now.is_search else []
    if search:
        search.append(_best(now, bests) if now.finds_best else _waiting(progress.waits_for(now)))
    parts = [
        _headline(first, now),
        *search,
        _guess(now),
        _confirmation(now),
        _training(now),
        _failures(now),
        _how_to_resume(now),
    ]
    if now.phase.is_over:
        box = _log(now, log, trimmed)
        parts += [_choices(log), box] if box else []
        height = _height(now) if box else 0
    else:
        parts += [_workers(now), _log(now, log, trimmed) or _NO_LOG]
        height = _height(now)
    return f'{_STYLE}<div class="maggy" style="min-height:{height}px">{"".join(parts)}</div>'


_NO_LOG = '<div class="log"><div class="soft">printed lines appear here</div></div>'

_HEIGHT, _ROW_HEIGHT = 396, 23
"""Pixels of a cell without workers, and of a worker's row."""


def _height(now: Snapshot) -> int:
    """Return the least height of a cell in pixels."""
    return _HEIGHT + _ROW_HEIGHT * min(max(now.n_workers, len(now.workers)), progress.MAX_WORKERS)


def curve(bests: Sequence[tuple[float, float]], end: float) -> str:
    """Return the best value over time as an SVG. Empty with fewer than two values.

    ``bests`` has the elapsed seconds and the value of each new best, in order of time. Each has a tooltip with both.
    """
    points = [(seconds, value) for seconds, value in bests if math.isfinite(value)]
    if len(points) < 2:
        return ""
    width, height = CURVE_SIZE
    low, high = min(value for _, value in points), max(value for _, value in points)
    # Halved first: the difference of two huge values is infinite.
    span = (high / 2 - low / 2) or 1.0

    def x(seconds: float) -> float:
        return width * min(1.0, (seconds - points[0][0]) / max(end - points[0][0], 1e-9))

    def y(value: float) -> float:
        return height * (1.0 - (value / 2 - low / 2) / span)

    path = f"M{x(points[0][0]):.1f},{y(points[0][1]):.1f}"
    path += "".join(f"H{x(seconds):.1f}V{y(value):.1f}" for seconds, value in points[1:]) + f"H{width:.1f}"
    title = f"from {text.number(points[0][1])} to {text.number(points[-1][1])}"
    hits = " ".join(
        f'<circle class="hit" cx="{x(seconds):.1f}" cy="{y(value):.1f}" r="5" fill-opacity="0">'
        f"<title>{text.number(value)} after {text.duration(seconds)}</title></circle>"
        for seconds, value in points
    )
    labels = [
        (-6.0, 4.0, "end", text.number(high)),
        (-6.0, height + 4.0, "end", text.number(low)),
        (0.0, height + 16.0, "start", text.duration(points[0][0])),
        (width, height + 16.0, "end", text.duration(end)),
    ]
    scale = " ".join(
        f'<text x="{left:.0f}" y="{top:.0f}" text-anchor="{anchor}" fill="currentColor" font-size="10">{words}</text>'
        for left, top, anchor, words in labels
    )
    return (
        f'<svg width="{width + 68:.0f}" height="{height + 26:.0f}" viewBox="-60 -6 {width + 68:.0f} {height + 26:.0f}" '
        f'role="img" aria-label="{title}">'
        f'<path d="M0,0H{width:.0f}M0,{height:.0f}H{width:.0f}" stroke="rgba(128,128,128,.35)"/>'
        f'<path d="{path}" fill="none" stroke="{ACCENT}" stroke-width="1.8" stroke-linejoin="round"/>'
        f'<circle cx="{width:.1f}" cy="{y(points[-1][1]):.1f}" r="2.6" fill="{ACCENT}"/>{scale} {hits}</svg>'
    )


def _headline(first: Snapshot, now: Snapshot) -> str:
    return (
        f'<div class="row"><span class="name">{_safe(now.name)}</span> '
        f'<span class="soft">{_safe(progress.goal(now))}</span> '
        f'<span class="end"><b>{escape(progress.state(now))}</b> &nbsp;{progress.clock(first, now)}</span></div>'
    )


def _progress(now: Snapshot) -> str:
    if now.n_trials:
        shares = [(now.counts.get(state, 0) / now.n_trials, color) for state, color in STATE_COLORS.items()]
    else:
        shares = [(now.elapsed / now.timeout if now.timeout else 0.0, ACCENT)]
    counts = "".join(
        f'<span><span class="dot" style="background:{color}"></span>{progress.counted(now, state)}</span> '
        for state, color in STATE_COLORS.items()
        if now.counts.get(state)
    )
    track = _track(shares) if now.n_trials or now.timeout else ""
    return f'{track}<div class="row">{counts}<span class="end">{progress.fraction(now)}</span></div>'


def _best(now: Snapshot, bests: Sequence[tuple[float, float]]) -> str:
    if now.best_trial is None:
        return f'<div class="row best{"" if now.pareto else " soft"}">{escape(progress.best(now))}</div>{_NO_CONFIG}'
    config = " ".join(
        f'<span class="pair"><span class="soft">{escape(name)}</span> {escape(value)}</span>'
        for name, value in text.pairs(now.best_config or {})
    )
    return (
        f'<div class="row best"><span class="value">{text.number(now.best_value)}</span> '
        f'<span class="soft">best {_safe(now.objective or "value")} {progress.best_place(now)}</span> '
        f'<span class="end">{curve(bests, now.elapsed)}</span></div>'
        f'<div class="row config">{config}</div>'
    )


_NO_CONFIG = '<div class="row config"></div>'


def _waiting(words: str) -> str:
    return f'<div class="row soft">{escape(words)}</div>' if words else ""


def _guess(now: Snapshot) -> str:
    return f'<div class="row"><b>{_safe(words)}</b></div>' if (words := text.guess(now)) else ""


def _how_to_resume(now: Snapshot) -> str:
    return f'<div class="row soft">{_safe(words)}</div>' if (words := progress.how_to_resume(now)) else ""


def _confirmation(now: Snapshot) -> str:
    line = now.confirmation
    if line is None:
        return ""
    track = _track([(line.ended / line.most, ACCENT)])
    return f'<div class="row"><b>{escape(progress.confirmation(now))}</b></div>{track}'


def _training(now: Snapshot) -> str:
    line = now.training
    if line is None:
        return ""
    track = _track([(line.step / line.budget, ACCENT)]) if line.budget > 1 else ""
    return f'<div class="row"><b>{escape(progress.training(now))}</b></div>{track}'


def _workers(now: Snapshot) -> str:
    workers = progress.expected(now)
    if not workers:
        return ""
    shown, others = progress.busiest(workers, progress.MAX_WORKERS)
    hosts = len({worker.host for worker in now.workers}) > 1
    head = (
        f"<tr><th>worker</th>{'<th>host</th>' if hosts else ''}<th>trial</th>"
        '<th style="width:30%"></th>'
        f'<th class="number">step</th><th class="number">{_safe(now.objective or "value")}</th>'
        '<th class="number">time</th></tr>'
    )
    rows = "".join(_worker(worker, hosts) for worker in shown)
    rest = f'<div class="soft">{_safe(others)}</div>' if others else ""
    return f'<div class="scroll"><table>{head}{rows}</table></div>{rest}'


def _worker(worker: WorkerLine, hosts: bool) -> str:
    host = f"<td>{_safe(worker.host)}</td>" if hosts else ""
    if worker.trial is None:
        state = f'<td colspan="5" class="soft">{_safe(worker.state)}</td>'
        return f"<tr><td>{worker.index}</td>{host}{state}</tr>"
    share = worker.step / worker.budget if worker.budget else 0.0
    steps = f"{worker.step}/{worker.budget}" if worker.budget else str(worker.step)
    return (
        f"<tr><td>{worker.index}</td>{host}"
        f'<td style="color:{_trial_color(worker.trial)}">{worker.trial}</td>'
        f"<td>{_track([(share, STATE_COLORS[TrialState.RUNNING])])}</td>"
        f'<td class="number">{steps}</td><td class="number">{text.number(worker.value)}</td>'
        f'<td class="number">{text.duration(worker.seconds)}</td></tr>'
    )


def _failures(now: Snapshot) -> str:
    lines = "".join(f"<div>{escape(text.failure(line))}</div>" for line in now.failures[: text.MAX_FAILURES])
    return f'<div class="failures">{lines}</div>' if lines else ""


def _log(now: Snapshot, log: Sequence[LogLine], trimmed: int) -> str:
    lines: list[str] = []
    room = MAX_LOG_CHARACTERS
    for line in reversed(log):
        drawn = _log_line(line)
        room -= len(drawn)
        if room < 0:
            break
        lines.append(drawn)
    trimmed += len(log) - len(lines)
    older = f'<div class="soft">{trimmed} older lines are in {_safe(now.directory)}</div>' if trimmed else ""
    if not lines:
        return ""
    # The box is a reversed column with one child, so that a browser shows its end and not its beginning.
    return f'<div class="log"><div>{older}{"".join(reversed(lines))}</div></div>'


def _log_line(line: LogLine) -> str:
    kind = "" if line.trial is None else f" t{line.trial}"
    return (
        f'<div class="line{kind}"><span style="color:{_trial_color(line.trial)}">{text.prefix(line)}</span>'
        f"{escape(line.text)}</div>"
    )


def _choices(log: Sequence[LogLine]) -> str:
    """Return what a reader may choose above the log: whether it is shown, and the trial whose lines it shows.

    The choices work by the style sheet only. A cell has them only after the run, since each redraw would reset them.
    """
    trials = sorted({line.trial for line in log if line.trial is not None})[-MAX_CHOICES:]
    rules = "".join(f".maggy:has(.c{trial}:checked) .log .line:not(.t{trial}) {{ display: none; }}" for trial in trials)
    options = "".join(f'<option class="c{trial}">trial {trial}</option>' for trial in trials)
    choice = f"<style>{rules}</style><select><option>all trials</option>{options}</select>" if len(trials) > 1 else ""
    fold = '<label><input type="checkbox" class="fold" checked/>newest lines of the log</label>'
    return f'<div class="row">{fold} {choice}</div>'


def _track(shares: Sequence[tuple[float, str]]) -> str:
    parts = "".join(
        f'<span style="width:{100 * min(1.0, share):.2f}%;background:{color}"></span>'
        for share, color in shares
        if share > 0
    )
    return f'<div class="track">{parts}</div>'


def _trial_color(trial: int | None) -> str:
    return "inherit" if trial is None else TRIAL_COLORS[trial % len(TRIAL_COLORS)]


def _safe(words: str) -> str:
    return escape(text.clean(words))


REDRAW_SECONDS = 0.5
"""A full cell is almost 200 kB, and Jupyter drops what a kernel sends beyond 1 MB per second."""

LOG_LINES = 500
LOG_BYTES = 1 << 20
PLAIN_LINES = 10


class NotebookDisplay:
    """Draws HTML in the cell that makes it, with a text for front ends without HTML.

    It stays in that cell, whichever cell and thread run later, so that a run in the background is not shown in the next
    cell. It draws only in updates, and at most twice per second of the search's time.
    """

    keeps_lines = False  # the log is folded
    has_shown_summary = False

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
        self.has_shown_summary = self._handle is not None

    def _take(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self._first = progress.pace_from(self._first, snapshot)
        self._log.extend(self._live.take(snapshot, lines))
        self._bests.take(snapshot)

    def _draw(self, snapshot: Snapshot, final: bool = False) -> None:
        self._drawn = snapshot.elapsed
        if self._handle is not None:  # None if IPython runs without a shell
            self._handle.update(self._bundle(snapshot, final), raw=True)  # type: ignore[no-untyped-call]

    def _bundle(self, snapshot: Snapshot, final: bool = False) -> dict[str, str]:
        log = [*self._log, *([] if final else self._live.lines.values())]
        newest = [text.prefix(line) + line.text for line in log[-PLAIN_LINES:]]
        state = progress.summary(snapshot) if final else [progress.status(self._first, snapshot)]
        return {
            "text/html": page(self._first, snapshot, self._bests.points, log, self._log.dropped),
            "text/plain": "\n".join([*state, *newest]),
        }
