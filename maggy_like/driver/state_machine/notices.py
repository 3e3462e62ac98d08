"""Messages to the user about attempts: failures, losses, and mistakes in how a function reports and saves."""

from __future__ import annotations

import math

from maggy_like.driver.state_machine.interface import Commands, Show
from maggy_like.driver.state_machine.run import Run
from maggy_like.train_function.code import rerun_hint
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState


def show_failure(run: Run, trial: Trial, failure: Failure) -> Commands:
    """Return the lines about a failed trial: the traceback of the first failure of each cause."""
    # A mistake in the function fails every trial in the same way; the error that ends a training has its traceback.
    first, message = run.traced.setdefault(failure.cause, (trial.id, failure.message))
    if first != trial.id and message == failure.message:
        return [Show(f"failed like trial {first}", trial.id)]
    details = "" if trial.is_final_training or first != trial.id else failure.traceback.rstrip()
    head = "failed:" if details.endswith(failure.message) else f"failed: {failure.message}"
    files = run.settings.files
    rerun = rerun_hint(files.function, str(files.paths.directory), trial.id)
    parts = [head, *([details, rerun] if details else [])]
    return [Show("\n".join(filter(None, parts)), trial.id)]


def show_loss(trial: Trial, failure: Failure) -> list[Show]:
    """Return the line about an attempt that is retried; none if one line speaks for all trials."""
    if failure.kind is FailureKind.NODE_LEFT:
        kept = trial.checkpoint
        way = "from the start" if kept is None else f"from its checkpoint at step {kept.step}"
        return [Show(f"attempt {trial.attempt} ended: {failure.message}; the trial continues {way}", trial.id)]
    if failure.kind in (FailureKind.DRIVER_LOST, FailureKind.STORE):
        return []
    why = "" if failure.kind is FailureKind.STAGE_LOST else f": {failure.message}"  # which is shown once for all
    return [Show(f"attempt {trial.attempt} lost{why}; the trial will be retried", trial.id)]


def warn(run: Run, key: str, text: str, trial: Trial, *, is_mistake: bool = True) -> Commands:
    """Show a warning to the user, once for each ``key``."""
    if key in run.warned:
        return []
    run.warned.add(key)
    return [Show(text, trial.id, is_warning=is_mistake)]


def warn_if_silent(run: Run, trial: Trial) -> Commands:
    """Say that a function did not report, if it could have been stopped early."""
    stops_early = run.study.scheduler.watches_reports or run.study.grant(trial).milestones
    if not stops_early or len(trial.curve):
        return []
    text = "reported nothing before it returned, so it could not be stopped early"
    return warn(run, "silent", f"{text}; call reporter.report(...) at each step", trial)


def warn_of_default(run: Run, trial: Trial) -> Commands:
    """Say that trials are longer than the default of ``max_budget``, if anything depends on it."""
    scheduler, most = run.study.scheduler, run.study.problem.max_budget
    if not (scheduler.may_promote or scheduler.watches_reports or run.study.grant(trial).milestones):
        return []
    text = (
        f"reported step {trial.step}, and max_budget={most} is only the default: trials continue to their own end, and "
        f"are compared up to step {most}; pass max_budget=N, the steps of a full training"
    )
    return warn(run, "default", text, trial)


def warn_of_restart(run: Run, trial: Trial, step: int) -> Commands:
    """Say that a promoted trial starts over, because it has no checkpoint."""
    text = (
        f"was promoted after step {trial.reported} and trains again from step {step}, because it had saved no state "
        f"by step {trial.reported}; save one by then and restore it, or use ASHA(mode='stopping')"
    )
    return warn(run, "restart", text, trial)


def warn_of_cut(run: Run, trial: Trial, step: int) -> Commands:
    """Say that a report past the budget has ended the function."""
    problem = run.study.problem
    option = "max_budget" if problem.n_trials != 0 else "budget"
    whole = f", and {option}={problem.max_budget}" if trial.budget != problem.max_budget else f" ({option})"
    steps = f"{trial.budget} step{'s' * (trial.budget > 1)}"
    text = (
        f"reported step {step} with a budget of {steps}{whole}, which ended the function at that report; loop up to "
        f"reporter.budget, or use a larger {option}"
    )
    return warn(run, "cut", text, trial)


def warn_if_unsaved(run: Run, trial: Trial) -> Commands:
    """Say that the best value has no checkpoint."""
    if trial.training or trial.state in (TrialState.FAILED, TrialState.PENDING) or run.study.value_rule == "last":
        return []
    if (other := trial.other_state(newest=False)) is None:
        return []
    text = (
        f"has no checkpoint of its best value, {trial.value:g} at step {trial.value_step}, so load_best() returns "
        f"that of step {other.step}; save a state before each report that may be the best"
    )
    return warn(run, "unsaved", text, trial)


def warn_if_uncounted(run: Run, trial: Trial, value: float | None) -> Commands:
    """Say that the returned value does not count, because it was not reported."""
    if value is None or trial.training or trial.reported is None or run.study.value_rule == "last":
        return []
    if value in trial.curve.values or not math.isfinite(value):
        return []
    text = f"returned {value:g} without reporting it; the trial's value is its best report, so report it as well"
    return warn(run, "uncounted", text, trial)
