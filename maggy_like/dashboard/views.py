"""What a dashboard shows of a run, as plain data: the JSON that its page and other programs read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maggy_like.dashboard.followed_run import FollowedRun, NotFoundError
from maggy_like.display.text import clean, config_text, words
from maggy_like.errors import ConfigError, JournalError, UserError
from maggy_like.protocol.messages import UNBOUNDED
from maggy_like.protocol.state_names import state_url
from maggy_like.protocol.values import encodable
from maggy_like.results.data import log_urls, read_log, state_of, training_line
from maggy_like.results.figures.curves import rungs, trial_curves
from maggy_like.results.figures.values import history
from maggy_like.results.figures.workers import timeline
from maggy_like.results.files import TrialFiles
from maggy_like.results.plots import Plots
from maggy_like.results.record import Attempt, Clock, value_of
from maggy_like.results.report import failures_by_cause, n_failed, plain, saved
from maggy_like.results.tables import recommendation
from maggy_like.storage.file_systems import leads_out
from maggy_like.storage.run_paths import RunPaths
from maggy_like.train_function.code import rerun_hint
from optimizers.core.trial import Checkpoint, Failure, Trial, TrialState

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from maggy_like.ablation import Ablation

Query = Mapping[str, str]
"""The part of an address after the question mark."""

_MOST_ROWS = 200
"""Trials in one answer."""

_MOST_RUNNING = 64
"""Running trials that are listed."""

_MOST_CAUSES = 20
"""Causes of failures that are listed, the most frequent first."""

_MOST_NAMED = 50
"""Trials that are named for each cause."""

_TRACEBACK = 20_000
"""Characters of a traceback, from its end."""

_TAIL = 64 << 10
"""Bytes of a log that are shown at once."""

_SHORT_TAIL = 4 << 10
"""The same for each of several trials."""

_MOST_LOGS = 8
"""Running trials whose newest lines are shown together."""

_LINES = 12
"""Lines of each of them."""

_MOST_DECISIONS = 2000
"""Decisions in one answer, the newest ones."""

_MOST_POINTS = 20_000
"""Points of a curve in one answer."""


def _finite(value: float | None) -> float | str | None:
    """Return a number for JSON, which has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else str(value)


def _steps(budget: int) -> int | None:
    return budget if budget < UNBOUNDED else None


def summary(run: FollowedRun) -> dict[str, Any]:
    """Return the state of a run, its best trial and what runs now."""
    result, header, snapshot = run.result, run.contents.header, run.snapshot
    running = [trial for trial in run.study.trials if trial.state is TrialState.RUNNING]
    running.sort(key=lambda trial: trial.worker or 0)
    training = None if result.training is None else result.training.trial
    clock = run.clock
    front = sorted(result.pareto, key=lambda trial: trial.values[0], reverse=result.direction == "max")
    return {
        "name": result.name,
        "directory": encodable(str(result.directory)),
        "state": str(run.state),
        "words": words(run.state, None if training is None else training.state),
        "is_over": run.state.is_over,
        "is_reading": run.files.is_behind,
        "created": header.created,
        "seconds": clock.total,
        "is_longer": result.is_longer,
        "optimizer": header.optimizer,
        "max_budget": _steps(header.max_budget),
        "objectives": [
            {"name": name, "direction": direction}
            for direction, name in [(result.direction, result.objective), *result.others]
        ],
        "parameters": list(result.space.names),
        "n_trials": snapshot.n_trials or None,
        "trials": len(result.trials),
        "counts": {state.value: count for state, count in result.counts.items()},
        "best": None if result.best_trial is None else _best(run, result.best_trial),
        "pareto": [_row(run, trial) for trial in front[:_MOST_ROWS]],
        "n_pareto": len(front),
        "running": [
            _row(run, trial) | {"running": _running_for(trial, clock)} for trial in running[:_MOST_RUNNING]
        ],
        "n_running": len(running),
        "training": None if training is None or result.training is None else _row(run, training)
        | {"line": training_line(result.training), "url": result.training.checkpoint},
        "confirmed": None if result.confirmed is None else _table(*result.confirmed.table(), result.confirmed.sentence),
        "is_ablation": bool(header.comparisons),
        "finds_best": header.finds_best,
        "figures": list(_figures(run)),
    }  # fmt: skip


def details(run: FollowedRun) -> dict[str, Any]:
    """Return what takes longer to make: the use of the workers, failures, comparisons and the environment."""
    result, record, contents = run.result, run.record, run.contents
    less, spent = saved(result.trials, contents.header.max_budget)
    workers = {worker for attempt in record.attempts for worker in attempt.workers}
    groups = failures_by_cause(result, record)
    answer = _ablation(run)
    begun = contents.begun
    return {
        "busy": record.busy_share,
        "workers": len(workers),
        "saved_seconds": less,
        "saved_share": less / (less + spent) if less > 0.0 else 0.0,
        "failed_attempts": sum(map(len, groups)),
        "failed_trials": n_failed(result),
        "failures": [_cause(run, group) for group in groups[:_MOST_CAUSES]],
        "more_causes": max(0, len(groups) - _MOST_CAUSES),
        "ablation": None if answer is None else _answer_table(answer),
        "recommended": recommendation(result) if run.state.is_over else [],
        "environment": [
            ["files", encodable(str(result.directory))],
            ["checkpoints", result.store],
            ["optimizer", contents.header.optimizer],
            ["seed", str(contents.header.seed)],
            ["times resumed", str(max(0, len(contents.sessions) - 1))],
            *([name, value] for name, value in (begun.environment if begun is not None else {}).items()),
        ],
        "space": [[name, repr(domain)] for name, domain in result.space.domains.items()],
        "damage": contents.damage,
    }


def _cause(run: FollowedRun, group: Sequence[tuple[int, Failure]]) -> dict[str, Any]:
    trials = list(dict.fromkeys(trial for trial, _ in group))
    return {
        **_failure(group[0][1]),
        "attempts": len(group),
        "trials": trials[:_MOST_NAMED],
        "n_trials": len(trials),
        "hint": run.record.rerun_hint(trials[0]),
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "kind": str(failure.kind),
        "message": clean(failure.message),
        "traceback": failure.traceback[-_TRACEBACK:].rstrip(),
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> dict[str, Any]:
    return {"head": list(head), "rows": [list(row) for row in rows], "notes": list(notes)}


def _ablation(run: FollowedRun) -> Ablation | None:
    """Return the answer of an ablation. None for other runs."""
    if not run.contents.header.comparisons:
        return None
    from maggy_like.ablation.outcome import recorded_answer  # for ablations only, since it takes a second

    return recorded_answer(run.result, run.contents.header.comparisons)


def _answer_table(answer: Ablation) -> dict[str, Any]:
    from maggy_like.ablation.text import table

    return _table(*table(answer), answer.method, *answer.notes)


def _row(run: FollowedRun, trial: Trial) -> dict[str, Any]:
    """Return a trial as tables show it."""
    result = run.result
    return {
        "trial": trial.id,
        "state": trial.state.value,
        "values": [_finite(value_of(result, trial, place)) for place in range(1 + len(result.others))],
        "value_step": trial.value_step,
        "newest": _finite(trial.last_value),
        "step": trial.step,
        "budget": _steps(trial.budget),
        "attempts": trial.attempts,
        "seconds": trial.seconds,
        "worker": trial.worker,
        "config": trial.config,
        "failure": None if trial.failure is None else clean(trial.failure.message),
    }


def _best(run: FollowedRun, trial: Trial) -> dict[str, Any]:
    """Return the best trial with its checkpoint."""
    metrics = {name: _finite(value) for name, value in trial.newest.items() if name != trial.objective}
    where = encodable(str(run.result.directory))
    load = f"from maggy_like import load_run\n\nstate = load_run({where!r}).load_best()"
    url = state_of(run.result, trial)
    return _row(run, trial) | {"metrics": metrics, "url": url, "load": load if url is not None else None}


_KEYS: dict[str, Callable[[Trial], Any]] = {
    "trial": lambda trial: trial.id,
    "state": lambda trial: trial.state.value,
    "step": lambda trial: trial.step,
    "attempts": lambda trial: trial.attempts,
    "seconds": lambda trial: trial.seconds,
}


def trials(run: FollowedRun, query: Query) -> dict[str, Any]:
    """Return trials that match a query, in its order: a part of them, and how many there are."""
    states = set(filter(None, query.get("state", "").split(",")))
    search = query.get("q", "").strip().lower()
    found = [
        trial
        for trial in run.result.trials
        if (not states or trial.state.value in states) and (not search or _matches(trial, search))
    ]
    by, order = query.get("sort") or "trial", query.get("order", "")
    if order not in ("", "asc", "desc"):
        raise ConfigError(f"order must be asc or desc, got {order!r}")
    known = [(value, trial) for trial in found if (value := _key(run, by, trial)) is not None]
    others = [trial for trial in found if _key(run, by, trial) is None]
    known.sort(key=lambda each: each[0], reverse=order == "desc")
    ranked = [trial for _, trial in known] + others
    offset, limit = _number(query, "offset", 0), min(_MOST_ROWS, _number(query, "limit", 50))
    return {
        "total": len(ranked),
        "all": len(run.result.trials),
        "offset": offset,
        "trials": [_row(run, trial) for trial in ranked[offset : offset + limit]],
    }


def _matches(trial: Trial, search: str) -> bool:
    return search == str(trial.id) or search in config_text(trial.config).lower()


def _key(run: FollowedRun, by: str, trial: Trial) -> Any:
    """Return what a trial is sorted by. None if it has no such value."""
    if by in _KEYS:
        return _KEYS[by](trial)
    kind, _, name = by.partition(":")
    if kind == "value" and (number := name or "0") in map(str, range(1 + len(run.result.others))):
        value = value_of(run.result, trial, int(number))
        return value if value is not None and math.isfinite(value) else None
    if kind == "config" and name in run.result.space.domains:
        value = trial.config.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if value is None else (not is_number, value if is_number else str(value))
    raise ConfigError(f"sort must be {', '.join(_KEYS)}, value, value:NUMBER or config:NAME, got {by!r}")


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if text and not (text.isdecimal() and len(text) < 16):
        raise ConfigError(f"{name} must be an integer of at least 0, got {text!r}")
    return int(text) if text else default


def find_trial(run: FollowedRun, number: str) -> Trial:
    """Return the trial of a number, also if it is a training or a repeat."""
    found = run.study.trials
    if not (number.isdecimal() and len(number) < 16 and int(number) < len(found)):
        raise NotFoundError(f"there is no trial {number} yet; this run has {len(found)} of them, from 0")
    return found[int(number)]


def trial_page(run: FollowedRun, trial: Trial) -> dict[str, Any]:
    """Return everything about a trial except its curves and its log."""
    result, clock = run.result, run.clock
    states = {"best": trial.best_checkpoint, "newest": trial.checkpoint}
    where, begun = encodable(str(result.directory)), run.contents.begun
    return _row(run, trial) | {
        "seconds": trial.seconds + _running_for(trial, clock),
        "last": len(run.study.trials) - 1,
        "training": trial.training and _steps(trial.training),
        "repeats": None if trial.repeat is None else trial.repeat.of,
        "parent": trial.parent,
        "ranks": trial.world_size,
        "metrics": {name: _finite(value) for name, value in trial.newest.items() if name != trial.objective},
        "attributes": dict(trial.attributes),
        "is_best": trial is result.best_trial or trial in result.pareto,
        "decisions": [[clock(each.time), each.text] for each in run.decisions.read(trial.id)],
        "all_attempts": [_attempt(attempt) for attempt in run.attempts.of_trial(trial.id, clock)],
        "states": [_saved_state(run, name, state) for name, state in states.items() if state is not None],
        "load": f"from maggy_like import load_run\n\nstate = load_run({where!r}).load({trial.id})",
        "hint": "" if begun is None else rerun_hint(begun.function, where, trial.id),
        "is_over": trial.is_over or run.state.is_over,
    }


def _running_for(trial: Trial, clock: Clock) -> float:
    """Return the seconds of the present attempt; 0 if the trial does not run."""
    return 0.0 if trial.started is None else clock.total - clock(trial.started)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "workers": attempt.workers,
        "begin": attempt.begin,
        "seconds": attempt.end - attempt.begin,
        "steps": attempt.steps,
        "state": "retried" if attempt.state is TrialState.PENDING else attempt.state.value,
        "failure": None if attempt.failure is None else _failure(attempt.failure),
    }


def _saved_state(run: FollowedRun, name: str, state: Checkpoint) -> dict[str, Any]:
    return {"what": name, "step": state.step, "url": state_url(run.result.store, state.name)}


def curves(trial: Trial) -> dict[str, Any]:
    """Return the measurements of a trial: steps and values of each metric."""
    return {
        name: {"steps": steps[-_MOST_POINTS:], "values": [_finite(value) for value in values[-_MOST_POINTS:]]}
        for name, (steps, values) in trial.columns().items()
    }


def log(run: FollowedRun, trial: Trial, query: Query) -> str:
    """Return the last part of what a trial printed, or with ``whole`` all of it."""
    rank = _number(query, "rank", 0)
    if query.get("whole"):
        return _read_log(run, trial, rank)
    return "\n".join(_tail(run, trial, rank, _TAIL))


def files(run: FollowedRun, trial: Trial) -> dict[str, Any]:
    """Return the files that a trial has written, with their sizes in bytes, and those that were not kept."""
    found = kept_files(run, trial)
    return {
        "files": [{"name": name, "size": found.size(name)} for name in list(found)[:_MOST_ROWS]],
        "total": len(found),
        "left_out": list(found.left_out),
    }


def kept_files(run: FollowedRun, trial: Trial) -> TrialFiles:
    """Return the files of a trial in the run's directory."""
    return TrialFiles(_paths(run).files, trial.id)


def newest_lines(run: FollowedRun) -> dict[str, Any]:
    """Return the newest lines of the running trials, or of the last one, and those of the driver."""
    begun = [trial for trial in run.study.trials if trial.attempt]
    running = [trial for trial in begun if trial.state is TrialState.RUNNING]
    shown = running[:_MOST_LOGS] or begun[-1:]
    return {
        "trials": [
            {"trial": trial.id, "state": trial.state.value, "lines": _tail(run, trial, 0, _SHORT_TAIL)[-_LINES:]}
            for trial in shown
        ],
        "more": len(running) - len(shown) if running else 0,
        "driver": [clean(line.text, keeps_tabs=True) for line in run.files.lines if line.trial is None][-_MOST_ROWS:],
    }


def _tail(run: FollowedRun, trial: Trial, rank: int, most: int) -> list[str]:
    text = _read_log(run, trial, rank, most)
    lines = text.splitlines()
    if len(text.encode()) >= most and lines:
        del lines[0]  # a part of a line
    return [clean(line, keeps_tabs=True) for line in lines]


def _read_log(run: FollowedRun, trial: Trial, rank: int, most: int | None = None) -> str:
    for url in log_urls(_paths(run), trial.id, rank, trial.attempt):
        check_place(os.path.dirname(url), url)
    return read_log(_paths(run), trial.id, rank, trial.attempt, most)


def check_place(directory: str, file: str) -> None:
    """Check that a file is in a directory, where a malicious run may have a link to another file."""
    if leads_out(directory, file):
        raise NotFoundError(
            f"{file} is a link out of {directory}, which the dashboard does not follow; open it yourself"
        )


def _paths(run: FollowedRun) -> RunPaths:
    return RunPaths(run.result.directory, run.result.store)


def decisions(run: FollowedRun) -> dict[str, Any]:
    """Return the newest decisions, the newest first."""
    found, clock = run.decisions.read(), run.clock
    newest = found[: -_MOST_DECISIONS - 1 : -1]
    return {"total": len(found), "decisions": [[clock(each.time), each.trial, each.text] for each in newest]}


@dataclass(frozen=True, slots=True)
class _Plot:
    """A plot of a run."""

    title: str
    draw: Callable[[FollowedRun, Query], Figure]


def _trial_curves(run: FollowedRun, query: Query) -> Figure:
    trial = find_trial(run, query.get("trial", ""))
    marks = [step for step in rungs(run.result.trials) if step <= trial.step] if not trial.training else []
    return trial_curves(trial, run.result.objective, f"Trial {trial.id}", marks)


def _forest(run: FollowedRun, _: Query) -> Figure:
    answer = _ablation(run)
    if answer is None:
        raise UserError("this run is not an ablation study")
    return answer.plot()


PLOTS = {
    "history": _Plot("History", lambda run, _: history(run.record)),
    "pareto": _Plot("Objectives", lambda run, _: Plots(run.result).pareto()),
    "differences": _Plot("Differences", _forest),
    "curves": _Plot("Learning curves", lambda run, query: Plots(run.result).curves(query.get("by") or None)),
    "training": _Plot("Training", lambda run, _: Plots(run.result).training()),
    "importance": _Plot("Importance", lambda run, _: Plots(run.result).importance()),
    "slices": _Plot("Slices", lambda run, _: Plots(run.result).slices()),
    "parallel": _Plot("Parallel coordinates", lambda run, _: Plots(run.result).parallel()),
    "workers": _Plot("Workers", lambda run, _: timeline(run.record)),
    "trial": _Plot("Trial", _trial_curves),
}
"""The plots by name."""


def _figures(run: FollowedRun) -> list[str]:
    """Return the names of the plots that a run has."""
    finds_best, has_params = run.contents.header.finds_best, bool(run.result.space.names)
    has = {
        "history": finds_best,
        "pareto": bool(run.result.others),
        "differences": not finds_best and bool(run.contents.header.comparisons),
        "training": run.result.training is not None,
        **dict.fromkeys(("importance", "slices", "parallel"), finds_best and has_params),
        "trial": False,
    }
    return [name for name in PLOTS if has.get(name, True)]


def figure(run: FollowedRun, name: str, query: Query) -> dict[str, Any]:
    """Return a plot as plotly draws it, and its note, or why it cannot be drawn."""
    if name not in PLOTS:
        raise NotFoundError(f"there is no plot {name!r}; use {', '.join(PLOTS)}")
    title = PLOTS[name].title
    try:
        drawn, note = plain(PLOTS[name].draw(run, query))
    except (UserError, JournalError) as error:
        return {"title": title, "figure": None, "note": f"Not drawn: {error}."}
    return {"title": title, "figure": drawn, "note": note}
