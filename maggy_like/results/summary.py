"""A result in a few lines of text."""

from __future__ import annotations

import math

from maggy_like.display.failures import failures_by_kind
from maggy_like.display.text import MAX_FAILURES, config_text, duration, failure, number, place, tally, words
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.values import encodable
from maggy_like.results.data import ResultData
from maggy_like.results.pareto import pareto_lines
from maggy_like.results.training import training_line
from optimizers.core.trial import TrialState


def summary(result: ResultData) -> str:
    """A few lines: how the search ended, what was best, what failed, and where its files are."""
    counted = tally(result.counts)
    trials = f": {len(result.trials)} trial{'s' * (len(result.trials) != 1)}" + (f" ({counted})" if counted else "")
    is_training_alone = result.training is not None and not result.trials
    ended = words(result.ending, None if result.training is None else result.training.trial.state)
    lines = [f"{ended} after {lasted(result)}{'' if is_training_alone else trials}"]
    if result.others:
        lines += pareto_lines(result)
    elif result.best_trial is not None:
        trial = result.best_trial
        where = place(trial.id, trial.value_step, failed=trial.state is TrialState.FAILED)
        best = f"best {result.objective} {number(result.best_value)} {where}"
        lines.append(f"{best}: {config_text(trial.config)}")
    elif any(trial.value is not None and math.isfinite(trial.value) for trial in result.trials):
        lines.append("none is the best: an ablation compares groups of trials, and ablate(...) returns what it found")
    elif any(trial.value is not None for trial in result.trials):
        lines.append("no trial has a finite value; trial.curve has what each reported")
    elif result.trials or result.training is None:
        lines.append(_without_value(result))
    lines += [failure(line) for line in failures_by_kind(result.trials)[:MAX_FAILURES]]
    if result.training is not None:
        lines.append(training_line(result.training))
    lines.append(encodable(f"files: {result.directory}"))
    return "\n".join(lines)


def _without_value(result: ResultData) -> str:
    if result.ending is not Ending.TIMEOUT:
        return "no trial has a value"
    if not result.trials:
        return "no trial began, since the start took all of the timeout; pass a longer timeout"
    return "no trial reported a value before the timeout; pass a longer timeout"


def lasted(result: ResultData) -> str:
    """How long drivers had the run; one that was killed recorded no end."""
    return duration(result.seconds) + " or more" * result.is_longer
