"""The parts of a report that are text and tables."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence

from maggy_like.display.text import clean, config_text, duration, number, pairs, tally, words
from maggy_like.results.attempts import Attempt
from maggy_like.results.best_state import state_of
from maggy_like.results.data import ResultData
from maggy_like.results.record import Record, value_of
from maggy_like.results.summary import lasted
from maggy_like.results.text_table import as_html
from maggy_like.results.training import training_line
from optimizers.core.trial import Failure, Trial, TrialState

_BEST = 20
"""Trials in the table."""

_CAUSES = 20
"""Causes of failures that are shown, the most frequent first."""

_NAMED = 12
"""Trials that are named of each."""

_TRACEBACK = 20_000
"""Characters of a traceback, from its end."""

_PARAMS = 8
"""Parameters that have a column of their own in the table of trials."""

_EARLY = (TrialState.STOPPED, TrialState.PAUSED)


def lead(result: ResultData, record: Record | None) -> str:
    """Below the title: how the run ended, and its figures in cards."""
    goals = ", ".join(f"{goal} {name}" for goal, name in [(result.direction, result.objective), *result.others])
    of = "" if record is None else f", by {record.contents.header.optimizer}"
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
            cards.append(_card(f"{share:.1%}", f"of the time of {len(workers)} workers, trials ran"))
        cards += _saved_card(result, record.contents.header.max_budget)
    return f'<p class="soft">{html.escape(line)}</p><div class="cards">{"".join(cards)}</div>'


def saved(trials: Sequence[Trial], max_budget: int) -> tuple[float, float]:
    """What stopping saved: worker seconds that full trainings would have taken longer, and those that all took.

    A trial that was stopped or paused would have gone on at its own pace.
    """
    spent = sum(trial.seconds * trial.world_size for trial in trials)
    less = 0.0
    for trial in trials:
        done = trial.step - trial.start
        if trial.state in _EARLY and done > 0:
            less += trial.seconds * trial.world_size / done * max(0, max_budget - trial.step)
    return less, spent


def best(result: ResultData) -> str:
    """The best configuration, and where its state is; or the Pareto set."""
    if result.others:
        ranked = sorted(result.pareto, key=lambda trial: trial.values[0], reverse=result.direction == "max")
        return trials_table(result, ranked[:_BEST])
    trial = result.best_trial
    if trial is None:
        return "<p>No trial has a value.</p>"
    table = f'<div class="scroll">{as_html(["parameter", "value"], pairs(trial.config))}</div>'
    metrics = {name: value for name, value in trial.newest.items() if name != trial.objective}
    said = f"<p>Its newest other metrics: {html.escape(config_text(metrics))}</p>" if metrics else ""
    url = state_of(result, trial)
    if url is None:
        return f"{table}{said}<p>It has saved no state; call <code>reporter.checkpoint(state)</code> to keep one.</p>"
    code = html.escape(f"from maggy_like import load_run\n\nstate = load_run({str(result.directory)!r}).load_best()")
    return f"{table}{said}<p>Its state: <code>{html.escape(url)}</code></p><pre>{code}</pre>"


def top_trials(result: ResultData) -> list[Trial]:
    """The best trials, the best first; those without a finite value are left out."""
    valued = [(trial, value_of(result, trial)) for trial in result.trials]
    found = [(trial, value) for trial, value in valued if value is not None and math.isfinite(value)]
    found.sort(key=lambda each: each[1], reverse=result.direction == "max")
    return [trial for trial, _ in found[:_BEST]]


def trials_table(result: ResultData, trials: Sequence[Trial]) -> str:
    """Trials as a table."""
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


def failures(result: ResultData, record: Record | None) -> str:
    """Failed attempts by cause: how many, of which trials, and the traceback of the first. Empty where none failed."""
    found = _failed(result, record)
    if not found:
        return ""
    causes: dict[object, list[tuple[int, Failure]]] = {}
    for trial, failure in found:
        cause = failure.cause if failure.types else (failure.kind, failure.message)
        causes.setdefault(cause, []).append((trial, failure))
    ranked = sorted(causes.values(), key=len, reverse=True)
    n_trials = len(result.failures)
    lines = [f"<p>{len(found):,} attempts failed or were lost; {n_trials:,} trials failed in the end.</p>"]
    lines += [_cause(group, is_open=place == 0) for place, group in enumerate(ranked[:_CAUSES])]
    if len(ranked) > _CAUSES:
        lines.append(f"<p>And {len(ranked) - _CAUSES} more causes; see <code>result.failures</code>.</p>")
    return "".join(lines)


def training(result: ResultData) -> str:
    """What came of the training, and where its state is."""
    if result.training is None:
        return ""
    url = result.training.best_checkpoint or result.training.checkpoint
    where = f"<p>Its state: <code>{html.escape(url)}</code></p>" if url else "<p>It has saved no state.</p>"
    return f"<p>{html.escape(training_line(result.training))}</p>{where}"


def environment(result: ResultData, record: Record | None) -> str:
    """What the run was asked for, and what its driver ran on."""
    rows = [["files", str(result.directory)], ["saved states", result.store]]
    if record is not None:
        header = record.contents.header
        begun = record.contents.begun
        rows += [
            ["optimizer", header.optimizer],
            ["seed", str(header.seed)],
            ["steps of a full training", str(header.max_budget)],
            ["times resumed", str(max(0, len(record.contents.sessions) - 1))],
            *([name, value] for name, value in (begun.environment if begun is not None else {}).items()),
        ]
    body = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(clean(value))}</td></tr>" for name, value in rows)
    return f'<table class="facts">{body}</table>'


def _cause(group: Sequence[tuple[int, Failure]], *, is_open: bool) -> str:
    """The failures of one cause: how many, of which trials, and the traceback of the first."""
    failure = group[0][1]
    trials = list(dict.fromkeys(trial for trial, _ in group))
    more = f" and {len(trials) - _NAMED} more" if len(trials) > _NAMED else ""
    named = ", ".join(map(str, trials[:_NAMED])) + more
    text = html.escape(failure.traceback[-_TRACEBACK:] or failure.message)
    said = f"{len(group)} times: {html.escape(clean(failure.message))} <span class='soft'>(trials {named})</span>"
    kind = f"<span class='kind'>{html.escape(failure.kind)}</span>"
    return f"<details{' open' if is_open else ''}><summary>{kind} {said}</summary><pre>{text}</pre></details>"


def _saved_card(result: ResultData, max_budget: int) -> list[str]:
    less, spent = saved(result.trials, max_budget)
    if less <= 0.0:
        return []
    said = f"of workers' time saved by stopping and pausing: {less / (less + spent):.0%} of full trainings"
    return [_card(duration(less), said)]


def _card(figure: str, said: str, *, is_best: bool = False) -> str:
    kind = "card best" if is_best else "card"
    return f'<div class="{kind}"><b>{html.escape(figure)}</b><span>{html.escape(clean(said))}</span></div>'


def _cell(trial: Trial, name: str) -> str:
    return dict(pairs({name: trial.config[name]}))[clean(name)] if name in trial.config else "-"


def _failed(result: ResultData, record: Record | None) -> list[tuple[int, Failure]]:
    """The trial and the failure of every attempt that had one."""
    if record is None:
        return [(trial.id, trial.failure) for trial in result.trials if trial.failure is not None]
    attempts: list[Attempt] = record.attempts
    return [(attempt.trial, attempt.failure) for attempt in attempts if attempt.failure is not None]
