"""The report: a run as one page of HTML that needs no network and no other file."""

from __future__ import annotations

import base64
import contextlib
import copy
import gzip
import html
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from maggy_like.argument_checks import require
from maggy_like.display.text import as_html, clean, config_text, duration, number, pairs, tally, words
from maggy_like.errors import ConfigError, JournalError, UserError
from maggy_like.protocol.messages import UNBOUNDED
from maggy_like.protocol.values import encodable
from maggy_like.results.data import ResultData, every_trial, state_of, training_line
from maggy_like.results.files import TrialFiles
from maggy_like.results.plots import Plots
from maggy_like.results.record import Record, read_record, value_of
from maggy_like.results.tables import lasted, recommendation
from maggy_like.storage.file_systems import open_url
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_FILES = 20
"""Number of a trial's files to which the page has links."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #5f6b7a; --paper: #ffffff; --card: #f5f7f9; --line: #dde2e8;
  --link: #1f6fb2; --mark: #2a9d6f; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa5b1; --paper: #16191d;
  --card: #1f2429; --line: #343b43; --link: #6db3f2; --mark: #4cc38a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem; max-width: 1240px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 0.3rem; font-size: 1.2rem; border-top: 1px solid var(--line); padding-top: 1.2rem; }
p { margin: 0.3rem 0; } .note, .soft { color: var(--soft); } a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; margin-top: 1rem; font-size: 0.9rem; }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 0.7rem; margin: 1rem 0 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 0.6rem 0.8rem; }
.card b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.card.best b { color: var(--mark); } .card span { color: var(--soft); font-size: 0.85rem; }
.scroll { overflow-x: auto; } .figure { width: 100%; break-inside: avoid; } .figure.wide { min-width: 760px; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; } .number { text-align: right; }
.facts td { overflow-wrap: anywhere; }
th.number { text-align: right; }
code, pre { font: 0.85rem/1.45 ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; } pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 0.6rem 0.8rem; max-height: 26rem; }
details { margin: 0.4rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
.kind { color: #d9534f; font-weight: 600; }
@media print { nav, .modebar { display: none; } section { break-inside: avoid-page; } pre { max-height: none; } }
"""

SCRIPT = """
(async () => {
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const { figures, templates } = JSON.parse(await unpack("figures"));
  if (!figures) return;
  const library = document.createElement("script");
  library.textContent = await unpack("library");
  document.head.append(library);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = (holder, paper = {}) => {
    const { data, layout } = figures[holder.dataset.figure];
    const template = templates[dark.matches ? "dark" : "light"];
    const modeBarButtonsToRemove = ["select2d", "lasso2d", "autoScale2d"];
    const options = { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove };
    Plotly.react(holder, data, { ...layout, template, ...paper }, options)
      .then(() => { holder.dataset.drawn = "yes"; });
  };
  const holders = [...document.querySelectorAll("[data-figure]")];
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) { near.unobserve(target); draw(target); }
    }
  }, { rootMargin: "400px" });
  holders.forEach((holder) => near.observe(holder));
  const redraw = () => holders.filter((holder) => holder.dataset.drawn).forEach((holder) => draw(holder));
  const paper = { template: templates.light, width: 700 };  // of a sheet of A4 within its margins
  addEventListener("beforeprint", () => holders.forEach((holder) => draw(holder, paper)));
  addEventListener("afterprint", redraw);
  dark.addEventListener("change", redraw);
})();
"""


_BEST = 20
"""Trials in the table."""

_CAUSES = 20
"""Causes of failures that are shown, the most frequent first."""

_NAMED = 12
"""Trials of a cause whose numbers are shown."""

_TRACEBACK = 20_000
"""Characters of a traceback, from its end."""

_PARAMS = 8
"""With up to this many parameters, the table of trials has one column per parameter."""

_EARLY = (TrialState.STOPPED, TrialState.PAUSED)


def lead(result: ResultData, record: Record | None) -> str:
    """Return what follows the title: how the run ended, and its key numbers in cards."""
    goals = ", ".join(f"{goal} {name}" for goal, name in [(result.direction, result.objective), *result.others])
    of = "" if record is None else f", by {record.contents.header.optimizer.partition('(')[0]}"
    begun = (
        ""
        if record is None
        else f"Begun {time.strftime('%Y-%m-%d %H:%M', time.localtime(record.contents.header.created))}, "
    )
    after = lasted(result) if record is None else duration(record.clock.total) + " or more" * record.is_longer
    line = f"{begun}{words(result.ending)} after {after}: {goals}{of}."
    cards = []
    if result.others:
        cards.append(_card(str(len(result.pareto)), "trials in the Pareto set", is_best=True))
    elif result.best_trial is not None:
        step = "" if result.best_step is None else f" at step {result.best_step}"
        said = f"best {result.objective}{step}, trial {result.best_trial.id}"
        cards.append(_card(number(result.best_value), said, is_best=True))
    cards.append(_card(f"{len(result.trials):,}", f"trials: {tally(result.counts)}"))
    if record is not None:
        cards.append(_card(duration(record.clock.total), "wall time"))
        share = record.busy_share
        workers = {worker for attempt in record.attempts for worker in attempt.workers}
        if share is not None:
            noun = f"{len(workers)} workers" if len(workers) > 1 else "one worker"
            cards.append(_card(f"{100 * share:.1f} %", f"{noun} busy"))
        cards += _saved_card(result, record.contents.header.max_budget)
    return f'<p class="soft">{html.escape(line)}</p><div class="cards">{"".join(cards)}</div>'


def saved(trials: Sequence[Trial], max_budget: int) -> tuple[float, float]:
    """Return the worker seconds that stopping saved compared with full trainings, and the seconds that were spent.

    A stopped or paused trial is assumed to need the same time for each further step.
    """
    spent = sum(trial.seconds * trial.world_size for trial in trials)
    less = 0.0
    for trial in trials:
        done = trial.step - trial.start
        if trial.state in _EARLY and done > 0:
            less += trial.seconds * trial.world_size / done * max(0, max_budget - trial.step)
    return less, spent


def best(result: ResultData) -> str:
    """Return the best configuration and the place of its state, or the Pareto set."""
    if result.others:
        ranked = sorted(result.pareto, key=lambda trial: trial.values[0], reverse=result.direction == "max")
        return trials_table(result, ranked[:_BEST])
    trial = result.best_trial
    if trial is None:
        return "<p>No trial has a value.</p>"
    table = _facts(pairs(trial.config))
    metrics = {name: value for name, value in trial.newest.items() if name != trial.objective}
    said = f"<p>Its newest other metrics: {html.escape(config_text(metrics))}</p>" if metrics else ""
    url, files = state_of(result, trial), _file_links(result, trial)
    if url is None:
        return (
            f"{table}{said}<p>It saved no state; call <code>reporter.checkpoint(state)</code> to keep one.</p>{files}"
        )
    code = html.escape(f"from maggy_like import load_run\n\nstate = load_run({str(result.directory)!r}).load_best()")
    return f"{table}{said}<p>Its state: <code>{html.escape(url)}</code></p><pre>{code}</pre>{files}"


def _file_links(result: ResultData, trial: Trial) -> str:
    """Return links to the files of a trial; empty if it has none, or they cannot be listed now."""
    with contextlib.suppress(UserError):
        files = TrialFiles(RunPaths(result.directory, result.store).files, trial.id)
        urls = {name: quote(files[name], safe=":/") for name in list(files)[:MOST_FILES]}
        links = [f'<a href="{url}">{html.escape(name)}</a>' for name, url in urls.items()]
        more = f" and {len(files) - MOST_FILES} others" if len(files) > MOST_FILES else ""
        return f"<p>Its files: {', '.join(links)}{more}</p>" if links else ""
    return ""


def top_trials(result: ResultData) -> list[Trial]:
    """Return the trials with the best finite values, the best first."""
    valued = [(trial, value_of(result, trial)) for trial in result.trials]
    found = [(trial, value) for trial, value in valued if value is not None and math.isfinite(value)]
    found.sort(key=lambda each: each[1], reverse=result.direction == "max")
    return [trial for trial, _ in found[:_BEST]]


def trials_table(result: ResultData, trials: Sequence[Trial]) -> str:
    """Return trials as a table."""
    goals = [result.objective, *(name for _, name in result.others)]
    names = result.space.names
    columns = names if len(names) <= _PARAMS else []
    rows = []
    for trial in trials:
        values = [number(value_of(result, trial, place)) for place in range(len(goals))]
        config = [_cell(trial, name) for name in columns] if columns else [config_text(trial.config)]
        end = "-" if trial.value_step is None else str(trial.value_step)
        rows.append([str(trial.id), *values, end, str(trial.state), duration(trial.seconds), *config])
    head = ["trial", *goals, "at step", "state", "time", *(columns or ["configuration"])]
    return f'<div class="scroll">{as_html(head, rows)}</div>'


def failures_by_cause(result: ResultData, record: Record | None) -> list[list[tuple[int, Failure]]]:
    """Return the failed or lost attempts of each cause, with their trials, the most frequent cause first."""
    causes: dict[object, list[tuple[int, Failure]]] = {}
    for trial, failure in _failed(result, record):
        cause = failure.cause if failure.types else (failure.kind, failure.message)
        causes.setdefault(cause, []).append((trial, failure))
    return sorted(causes.values(), key=len, reverse=True)


def n_failed(result: ResultData) -> int:
    """Return how many trials failed in the end, including repeats and the training."""
    return sum(trial.state is TrialState.FAILED for trial in every_trial(result))


def failures(result: ResultData, record: Record | None) -> str:
    """Return failed attempts by cause, each with its count, its trials, and the first traceback. Empty without any."""
    ranked = failures_by_cause(result, record)
    if not ranked:
        return ""
    n_attempts = sum(map(len, ranked))
    n_trials = n_failed(result)
    lines = [f"<p>{n_attempts:,} attempts failed or were lost; {n_trials:,} trials failed in the end.</p>"]
    lines += [_cause(record, group, is_open=place == 0) for place, group in enumerate(ranked[:_CAUSES])]
    if len(ranked) > _CAUSES:
        lines.append(f"<p>And {len(ranked) - _CAUSES} more causes; see <code>result.failures</code>.</p>")
    return "".join(lines)


def training(result: ResultData) -> str:
    """Return the result of the training, and the place of its state."""
    if result.training is None:
        return ""
    url = result.training.best_checkpoint or result.training.checkpoint
    where = f"<p>Its state: <code>{html.escape(url)}</code></p>" if url else "<p>It saved no state.</p>"
    return f"<p>{html.escape(training_line(result.training))}</p>{where}"


def environment(result: ResultData, record: Record | None) -> str:
    """Return the settings of the run, and the machine and versions of its driver."""
    rows = [["files", str(result.directory)], ["checkpoints", result.store]]
    if record is not None:
        header = record.contents.header
        begun = record.contents.begun
        rows += [
            ["optimizer", header.optimizer],
            ["seed", str(header.seed)],
            *([["steps of a full training", str(header.max_budget)]] if header.max_budget < UNBOUNDED else []),
            ["times resumed", str(max(0, len(record.contents.sessions) - 1))],
            *([name, value] for name, value in (begun.environment if begun is not None else {}).items()),
        ]
    return _facts(rows)


def _facts(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of names and values."""
    body = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(clean(value))}</td></tr>" for name, value in rows)
    return f'<table class="facts">{body}</table>'


def _cause(record: Record | None, group: Sequence[tuple[int, Failure]], *, is_open: bool) -> str:
    """Return the failures of one cause."""
    failure = group[0][1]
    trials = list(dict.fromkeys(trial for trial, _ in group))
    more = f" and {len(trials) - _NAMED} more" if len(trials) > _NAMED else ""
    named = ", ".join(map(str, trials[:_NAMED])) + more
    hint = record.rerun_hint(trials[0]) if record is not None else ""
    text = html.escape(f"{failure.traceback[-_TRACEBACK:].rstrip() or failure.message}\n{hint}".rstrip())
    said = f"{len(group)} times: {html.escape(clean(failure.message))} <span class='soft'>(trials {named})</span>"
    kind = f"<span class='kind'>{html.escape(failure.kind)}</span>"
    return f"<details{' open' if is_open else ''}><summary>{kind} {said}</summary><pre>{text}</pre></details>"


def _saved_card(result: ResultData, max_budget: int) -> list[str]:
    less, spent = saved(result.trials, max_budget)
    if less <= 0.0:
        return []
    said = f"of workers' time saved by stopping and pausing: {100 * less / (less + spent):.0f} % of full trainings"
    return [_card(duration(less), said)]


def _card(figure: str, said: str, *, is_best: bool = False) -> str:
    kind = "card best" if is_best else "card"
    return f'<div class="{kind}"><b>{html.escape(figure)}</b><span>{html.escape(clean(said))}</span></div>'


def _cell(trial: Trial, name: str) -> str:
    return dict(pairs({name: trial.config[name]}))[clean(name)] if name in trial.config else "-"


def _failed(result: ResultData, record: Record | None) -> list[tuple[int, Failure]]:
    """Return the trial and the failure of each failed attempt. One that was interrupted has not failed."""
    if record is None:
        ended = [(trial.id, trial.failure) for trial in every_trial(result)]
    else:
        ended = [(attempt.trial, attempt.failure) for attempt in record.attempts]
    return [(trial, it) for trial, it in ended if it is not None and it.kind is not FailureKind.DRIVER_LOST]


# The page cannot load anything from elsewhere. plotly compiles functions for its WebGL plots.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str
    body: str = ""  # HTML, with all foreign text escaped
    figure: Figure | None = None  # a plot below it, whose title and note become text of the page
    is_wide: bool = False  # whether the plot needs the width of a desktop; a smaller screen scrolls it


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the whole page. ``title`` is text, and ``lead`` is the HTML below it."""
    figures: dict[str, Any] = {}
    parts, links = [], []
    for section in sections:
        place = re.sub(r"[^a-z]+", "-", section.title.lower()).strip("-")
        note, holder = "", ""
        if section.figure is not None:
            figure, note = plain(section.figure)
            figures[place] = figure
            width = " wide" if section.is_wide else ""
            holder = (
                f'<div class="scroll"><div class="figure{width}" id="figure-{place}" data-figure="{place}" '
                f'style="height:{figure["layout"]["height"]}px"></div></div>'
            )
        said = f'<p class="note">{note}</p>' if note else ""
        heading = html.escape(section.title)
        parts.append(f'<section id="{place}"><h2>{heading}</h2>{said}{section.body}{holder}</section>')
        links.append(f'<a href="#{place}">{heading}</a>')
    data = {"figures": figures, "templates": templates()} if figures else {}
    name = html.escape(title)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{STYLE}</style></head><body>",
            f"<header><h1>{name}</h1>{lead}</header><nav>{' '.join(links)}</nav>",
            f"<main>{''.join(parts)}</main>",
            _packed_library() if figures else _packed("library", ""),
            _packed("figures", json.dumps(data, separators=(",", ":"))),
            f"<script>{SCRIPT}</script></body></html>",
        ]
    )


def library() -> str:
    """Return the code of plotly.js."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


@cache
def _packed_library() -> str:
    """Return the script element with plotly.js. It is kept, since compressing it takes half of the time of a report."""
    return _packed("library", library())


def _packed(name: str, text: str) -> str:
    """Return a script element with compressed text, since plotly takes five megabytes."""
    data = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    return f'<script type="application/octet-stream" id="{name}">{data}</script>'


def plain(figure: Figure) -> tuple[dict[str, Any], str]:
    """Return a figure as the page's script draws it, and its note. Title and template are those of the page."""
    form: dict[str, Any] = json.loads(figure.to_json())
    layout = form["layout"]
    title = layout.pop("title", {})
    layout.pop("template", None)
    layout["autosize"] = True
    margin = layout.setdefault("margin", {})
    margin["t"] = max(30, margin.get("t", 80) - 40)
    return {"data": form["data"], "layout": layout}, title.get("subtitle", {}).get("text", "")


def templates() -> dict[str, Any]:
    """Return the layouts of plotly's light and dark templates, on the background of the page."""
    import plotly.io

    found = {}
    for kind, name, grid, paper, soft, ink in (
        ("light", "plotly_white", "#e3e6ea", "#ffffff", "#8a94a0", "#1f2933"),
        ("dark", "plotly_dark", "#3a3f47", "#16191d", "#7d8793", "#e4e7eb"),
    ):
        layout = copy.deepcopy(plotly.io.templates[name].to_plotly_json()["layout"])
        layout |= {"paper_bgcolor": paper, "plot_bgcolor": paper}  # of the page: on a clear one, buttons are grey
        layout["modebar"] = {"bgcolor": paper, "color": soft, "activecolor": ink}
        for axis in ("xaxis", "yaxis"):
            layout[axis] |= {"gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "zerolinewidth": 1}
        found[kind] = {"layout": layout}
    return found


def write_report(
    result: ResultData, path: str | PathLike[str], first: Sequence[Section] = (), by: str | None = None
) -> None:
    """Write the report of a run to a path or URL (see :meth:`maggy_like.Result.report`).

    ``first`` has the sections at the beginning, such as a comparison of groups of trials. With them, no trial is the
    best. ``by`` is the parameter whose values distinguish the learning curves, by default the state of the trials.
    """
    require("plotly", "report()")
    if not isinstance(path, str | PathLike):
        raise ConfigError(f"path must be the path or URL of the page, got {path!r}; use report('report.html')")
    _write(fspath(path), make_report(result, first, by))


def make_report(result: ResultData, first: Sequence[Section] = (), by: str | None = None) -> str:
    """Return the page of the report."""
    record, missing = _record(result)
    found = [*first]
    if not first:
        title = "Pareto set" if result.others else "Best configuration"
        found.append(Section(title, best(result)))
        found += [Section("Recommendation", f"<p>{html.escape(line)}</p>") for line in recommendation(result)]
    if result.confirmed is not None:
        found.append(Section("Confirmation", f'<div class="scroll">{result.confirmed._repr_html_()}</div>'))
    found += _plots(result, by, finds_best=not first)
    found.append(Section("Best trials", trials_table(result, top_trials(result))))
    if failed := failures(result, record):
        found.append(Section("Failures", failed))
    found.append(Section("Environment", missing + environment(result, record)))
    return page(result.name, lead(result, record), found)


def _plots(result: ResultData, by: str | None, *, finds_best: bool) -> list[Section]:
    """Return the sections with a plot. If one cannot be drawn, the section has the reason."""
    plot = Plots(result)
    found = [_section("History", plot.history)] if finds_best else []
    if result.others:
        found.append(_section("Objectives", plot.pareto))
    found.append(_section("Learning curves", lambda: plot.curves(by)))
    if result.training is not None:
        found.append(_section("Training", plot.training, body=training(result)))
    if result.space.names and finds_best:
        found += [
            _section("Importance", plot.importance),
            _section("Slices", plot.slices, is_wide=True),
            _section("Parallel coordinates", plot.parallel, is_wide=True),
        ]
    return [*found, _section("Workers", plot.timeline)]


def _section(title: str, draw: Callable[[], Figure], *, body: str = "", is_wide: bool = False) -> Section:
    try:
        return Section(title, body, draw(), is_wide)
    except (UserError, JournalError) as error:
        return Section(title, f'{body}<p class="note">Not drawn: {html.escape(str(error))}.</p>')


def _record(result: ResultData) -> tuple[Record | None, str]:
    """Read the journal. If that fails, return the reason as HTML."""
    try:
        return read_record(result), ""
    except (UserError, JournalError) as error:
        return None, f'<p class="note">{html.escape(str(error))}</p>'


def _write(where: str, text: str) -> None:
    try:
        if "://" in where:
            fs, path = open_url(where)
            fs.pipe_file(path, text.encode())
        else:
            Path(where).expanduser().write_text(encodable(text), encoding="utf-8")
    except Exception as error:  # of any file system
        said = f"{type(error).__name__}: {error}"
        raise UserError(
            f"the report cannot be written to {where!r} ({said}); use the path of a file in an existing directory"
        ) from error
