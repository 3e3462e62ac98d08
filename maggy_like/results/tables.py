"""A result as text and as tables: of pandas, aligned for a terminal, and in HTML."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.display.base import failures_by_kind
from maggy_like.display.text import (
    MAX_FAILURES,
    aligned,
    clean,
    config_text,
    duration,
    failure,
    number,
    place,
    tally,
    words,
)
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.values import attribute_names, encodable
from maggy_like.results.data import ResultData, every_trial, is_deleted, other_state, training_line
from maggy_like.results.frames import as_frame, param_columns
from optimizers.core.trial import Trial, TrialState

if TYPE_CHECKING:
    import pandas


def trials_table(result: ResultData) -> pandas.DataFrame:
    """Implement :meth:`Result.to_pandas`."""
    require("pandas", "to_pandas()")
    rows: list[dict[str, Any]] = [
        {
            "trial": trial.id,
            "state": trial.state.value,
            **_values(result, trial),
            "step": trial.reported if trial.reported is not None else trial.start or None,
            "attempts": trial.attempts,
            "seconds": trial.seconds,
            "failure": trial.failure.message if trial.failure is not None else None,
            "parent": trial.parent,
        }
        for trial in result.trials
    ]
    fixed = ["trial", "state", *_value_columns(result), "step", "attempts", "seconds", "failure", "parent"]
    params = param_columns(fixed, result.space.domains)
    objectives = {result.objective, *(name for _, name in result.others)}
    returned = [
        {**{name: value for name, value in trial.metrics.items() if name not in objectives}, **trial.attributes}
        for trial in result.trials
    ]
    names = attribute_names(returned, taken={*fixed, *params, *params.values()})
    for trial, values, row in zip(result.trials, returned, rows, strict=True):
        row |= {params.get(name, name): value for name, value in trial.config.items()}
        row |= {names[name]: value for name, value in values.items()}
    table = as_frame(rows, None if rows else [*fixed, *params.values()])
    for name in {"value_step", "step", "parent"}.intersection(fixed):  # also if no row has one
        table[name] = table[name].astype("Int64")
    return table


def ranked(result: ResultData, table: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of the five best trials, or of the Pareto set. Values that are not finite rank worst."""
    import pandas

    if result.others and len(table):
        table = table[table["trial"].isin([trial.id for trial in result.pareto])]
    if len(table):
        by = f"value_{result.objective}" if result.others else "value"
        losses = pandas.to_numeric(table[by]) * (1.0 if result.direction == "min" else -1.0)
        table = table.loc[losses.where(losses.abs() < math.inf).sort_values(kind="stable").index]
    return table if result.others else table.head(5)


def curves_table(result: ResultData) -> pandas.DataFrame:
    """Implement :meth:`Result.curves`."""
    require("pandas", "curves()")
    import pandas

    rows = [
        (trial.id, step, name, value)
        for trial in result.trials
        for name, (steps, values) in trial.columns().items()
        for step, value in zip(steps, values, strict=True)
    ]
    return pandas.DataFrame(rows, columns=["trial", "step", "metric", "value"])


def _value_columns(result: ResultData) -> tuple[str, ...]:
    """Return the columns of the objectives."""
    if not result.others:
        return ("value", "value_step")
    return (f"value_{result.objective}", *(f"value_{name}" for _, name in result.others))


def _values(result: ResultData, trial: Trial) -> dict[str, Any]:
    """Return the objectives of a trial, by column."""
    columns = _value_columns(result)
    values = (trial.values or (None,) * len(columns)) if result.others else (trial.value, trial.value_step)
    return dict(zip(columns, values, strict=True))


BEST = 5
"""Trials that a printed result shows."""

_LONGEST = 80  # characters of a configuration


def best_trials(result: ResultData, most: int = BEST) -> str:
    """Return a table of the best trials, or of those in the Pareto set, as text. Empty if there are no trials.

    It has at most ``most`` rows. Trials without a finite value come last.
    """
    chosen = {trial.id for trial in result.pareto}
    sign = 1.0 if result.direction == "min" else -1.0

    def key(trial: Trial) -> tuple[bool, float, int]:
        value = sign * trial.value if trial.value is not None and math.isfinite(trial.value) else math.inf
        return (trial.id not in chosen, value, trial.id)

    rows = [_cells(trial) for trial in sorted(result.trials, key=key)[:most]]
    return aligned(("trial", "state", result.objective, "step", "configuration"), rows) if rows else ""


def _cells(trial: Trial) -> list[str]:
    config = config_text(trial.config)
    config = config if len(config) <= _LONGEST else f"{config[: _LONGEST - 1]}…"
    step = "-" if trial.reported is None else str(trial.reported)
    return [str(trial.id), trial.state.value, number(trial.value), step, config]


ROWS = 10
"""Trials that the text shows. ``Result.pareto`` has all of them."""


def pareto_lines(result: ResultData) -> list[str]:
    """Return the Pareto set, one line per trial, sorted by the first objective."""
    goals = ", ".join(f"{direction} {clean(name)}" for direction, name in _goals(result))
    if not result.pareto:
        return [f"no trial has all values ({goals})"]
    ranked = sorted(result.pareto, key=lambda trial: trial.values[0], reverse=result.direction == "max")
    head = ["trial", *(name for _, name in _goals(result)), "config"]
    table = aligned(head, [[str(t.id), *map(number, t.values), config_text(t.config)] for t in ranked[:ROWS]])
    more = [f"and {len(ranked) - ROWS} more in result.pareto"] if len(ranked) > ROWS else []
    return [f"Pareto set of {len(ranked)} ({goals}):", *table.splitlines(), *more]


def _goals(result: ResultData) -> list[tuple[str, str]]:
    return [(result.direction, result.objective), *result.others]


def summary(result: ResultData) -> str:
    """Return a few lines: how the search ended, the best trial, failures, and the directory of its files."""
    counted = tally(result.counts)
    trials = f": {len(result.trials)} trial{'s' * (len(result.trials) != 1)}" + (f" ({counted})" if counted else "")
    is_only_training = result.training is not None and not result.trials
    ended = words(result.ending, None if result.training is None else result.training.trial.state)
    lines = [f"{ended} after {lasted(result)}{'' if is_only_training else trials}"]
    if result.others:
        lines += pareto_lines(result)
    elif result.best_trial is not None:
        trial = result.best_trial
        where = place(trial.id, trial.value_step, failed=trial.state is TrialState.FAILED)
        best = f"best {result.objective} {number(result.best_value)} {where}"
        lines.append(f"{best}: {config_text(trial.config)}")
        lines += filter(None, [other_state(result, trial)])
    elif any(trial.value is not None and math.isfinite(trial.value) for trial in result.trials):
        lines.append("no best trial: an ablation compares groups of trials, and ablate(...) returns the comparisons")
    elif any(trial.value is not None for trial in result.trials):
        lines.append("no trial has a finite value; trial.curve has the reports of each")
    elif result.trials or result.training is None:
        lines.append(_without_value(result))
    of_search = [trial for trial in every_trial(result) if not trial.is_final_training]
    lines += [failure(line) for line in failures_by_kind(of_search)[:MAX_FAILURES]]
    if result.confirmed is not None:
        lines.append(f"confirmed: {clean(result.confirmed.sentence)}")
    lines += recommendation(result)
    if result.training is not None:
        lines.append(training_line(result.training))
    if not is_deleted(result):
        lines.append(encodable(f"files: {result.directory}"))
    return "\n".join(lines)


def recommendation(result: ResultData) -> list[str]:
    """Return the recommended trial, if values are so noisy that the best one says little, and nothing was repeated."""
    if result.confirmed is not None or result.recommended is None or not result.recommended.is_noisy:
        return []
    return [f"recommended: {clean(result.recommended.sentence)}"]


def printed(result: ResultData, *, is_shown: bool) -> str:
    """Return the summary with the best trials.

    If ``is_shown``, a display has just printed the summary, and the text has only what that did not say.
    """
    table = "\n".join(pareto_lines(result)) if result.others else best_trials(result)
    if is_shown and table:
        return "\n".join([table, *recommendation(result)])
    return summary(result) if result.others or not table else f"{summary(result)}\n\n{table}"


def _without_value(result: ResultData) -> str:
    if result.ending is not Ending.TIMEOUT:
        return "no trial has a value"
    if not result.trials:
        return "no trial began, since the start took all of the timeout; pass a longer timeout"
    return "no trial reported a value before the timeout; pass a longer timeout"


def lasted(result: ResultData) -> str:
    """Return how long the run took. It may be more if a driver was killed and recorded no end."""
    return duration(result.seconds) + " or more" * result.is_longer
