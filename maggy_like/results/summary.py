"""A result in a few lines of text."""

from __future__ import annotations

from maggy_like.display.text import config_text, duration, number, place, words
from maggy_like.results.data import ResultData
from maggy_like.results.pareto import pareto_lines
from maggy_like.results.training import training_line
from optimizers.core.trial import TrialState


def summary(result: ResultData) -> str:
    """A few lines: how the search ended, what was best, what failed, and where its files are."""
    counted = ", ".join(f"{count} {state.value}" for state, count in result.counts.items())
    trials = f"{len(result.trials)} trials" + (f" ({counted})" if counted else "")
    lines = [f"{words(result.ending)} after {duration(result.seconds)}: {trials}"]
    if result.others:
        lines += pareto_lines(result)
    elif result.best_trial is not None:
        trial = result.best_trial
        where = place(trial.id, trial.value_step, failed=trial.state is TrialState.FAILED)
        best = f"best {result.objective} {number(result.best_value)} {where}"
        lines.append(f"{best}: {config_text(trial.config)}")
    elif any(trial.value is not None for trial in result.trials):
        lines.append("none is the best: an ablation compares groups of trials, and ablate(...) returns what it found")
    elif result.trials or result.training is None:
        lines.append("no trial has a value")
    if failures := result.failures:
        first = failures[0]
        cause = first.failure.message if first.failure is not None else ""
        lines.append(f"{len(failures)} failed, the first (trial {first.id}) with: {cause}")
    if result.training is not None:
        lines.append(training_line(result.training))
    lines.append(f"files: {result.directory}")
    return "\n".join(lines)
