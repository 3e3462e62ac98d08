"""Decisions about the next trial, the end of the search, and the confirmation and the training after it."""

from __future__ import annotations

from collections.abc import Iterable

from maggy_like.driver.state_machine import attempts
from maggy_like.driver.state_machine.interface import Commands, Send, Show
from maggy_like.driver.state_machine.run import Run, RunningAttempt, Worker, WorkerState
from maggy_like.protocol.endings import Ending, StopReason
from maggy_like.protocol.messages import Finished, Shutdown
from optimizers.core.events import TrialCreated
from optimizers.core.trial import Failure, Trial, TrialState
from optimizers.space import Config

PATIENCE = 30.0
"""Seconds that a training waits for lost workers before it continues with the others."""

_MOST_NAMED = 10  # trials


def start(run: Run) -> Commands:
    """Begin, or continue where the replayed journal ends."""
    commands: Commands = []
    failed = run.failures.to_retry(run.study.trials)
    if again := [trial.id for trial in failed if run.study.retry(trial)]:
        which = ", ".join(map(str, again[:_MOST_NAMED])) + (", ..." if len(again) > _MOST_NAMED else "")
        commands.append(Show(f"trials that had failed identically are retried: {which}"))
    for trial in run.study.trials:
        if trial.state is TrialState.RUNNING:
            commands += attempts.lose_with_driver(run, trial, run.now)
        elif trial.state is TrialState.PENDING:
            run.retries.append(trial.id)
    attempts.sort_retries(run)
    run.proposals.go_on()
    # Without a time limit, a search that had ended ends again by itself, once it has the trials that were added.
    if run.settings.limits.timeout is not None and (phase := _interrupted(run)):
        if run.proposals.has_more:
            commands.append(Show(f"the interrupted {phase} continues, and no other configuration is tried"))
        commands += end_search(run, Ending.COMPLETED, None)
    commands += _end_at_target(run)
    commands += _ask_ahead(run)
    commands += _close_if_done(run)
    return commands


def _interrupted(run: Run) -> str:
    """Return which phase after the search an earlier driver did not finish; empty if there is none."""
    last = run.study.trials[-1] if run.study.trials else None
    if run.settings.training is not None and last is not None and last.is_final_training and not last.is_over:
        return "training"
    is_unconfirmed = run.study.repeats and run.confirming is not None and not run.confirming.is_over
    return "confirmation" if is_unconfirmed else ""


def rank_ended(run: Run, attempt: RunningAttempt, worker: Worker, end: Finished | Failure) -> Commands:
    """Take in that a rank has ended. With the last one, the attempt ends, and its workers get other work."""
    commands = attempts.rank_ended(attempt, worker, end)
    if not attempt.has_ended:
        return commands
    del run.attempts[attempt.trial]
    for member in attempt.members:
        member.attempt = None
        if member.state is not WorkerState.BUSY:
            continue  # it was lost
        if run.ending is not None:
            member.state = WorkerState.DRAINING
        else:
            set_idle(run, member)
            if member.leaving:
                commands += shut_down(run, member)
    commands += attempts.end(run, attempt)
    commands += run.outage.ended(run.study.trials[attempt.trial], run.now)
    attempts.sort_retries(run)
    error = run.unclear or run.failures.error()
    if error is not None and not run.is_after_search:
        commands += end_search(run, Ending.ERROR, error)
    return commands + dispatch(run)


def set_idle(run: Run, worker: Worker) -> None:
    """Note that a worker has nothing to do."""
    worker.state = WorkerState.IDLE
    run.idle[worker.id.index] = run.now


# -- what runs next -----------------------------------------------------------------------------------


def dispatch(run: Run) -> Commands:
    """Give work to idle workers as long as there is some; end the run when there will be none."""
    commands = _end_at_target(run)
    if run.ending is None and (run.idle or run.search_ended is not None):  # none is idle after most reports
        commands += _assign(run)
    commands += _ask_ahead(run)
    commands += _close_if_done(run)
    return commands


def _assign(run: Run) -> Commands:
    """Start attempts: first those that must be retried, then promotions, then new configurations."""
    commands: Commands = []
    if run.is_training and not run.attempts:
        commands += _begin_training(run)
    while members := _free_members(run):
        trial, cause, creation = _next_trial(run)
        if trial is None:
            break
        commands += creation
        commands += attempts.start(run, _where_paused(run, trial) or members, trial, cause)
    return commands


def _where_paused(run: Run, trial: Trial) -> list[Worker]:
    """Return the idle worker on which a trial was paused, because its function may still wait there."""
    if trial.state is not TrialState.PAUSED or run.settings.size.workers_per_trial > 1 or trial.worker not in run.idle:
        return []
    return [run.workers[trial.worker]]


def _free_members(run: Run) -> list[Worker]:
    """Return the idle workers that would run the next attempt together; none as long as they are too few."""
    needed = run.settings.size.workers_per_trial
    if run.is_confirming:  # once the last trial of the search has ended: it may turn out to be the best
        needed = 0 if any(not run.study.trials[number].training for number in run.attempts) else needed
    elif run.search_ended is not None:
        needed = 0 if run.attempts or run.settings.training is None else _n_trainers(run)
    if not needed or len(run.idle) < needed:
        return []
    if needed == 1:
        return [run.workers[next(iter(run.idle))]]
    return choose((run.workers[index] for index in run.idle), needed)


def choose(idle: Iterable[Worker], count: int) -> list[Worker]:
    """Return ``count`` of the idle workers, on as few hosts as possible, those of a host next to each other."""
    hosts: dict[str, list[Worker]] = {}
    for worker in idle:
        hosts.setdefault(worker.host, []).append(worker)
    fullest = sorted(hosts.values(), key=len, reverse=True)
    chosen = [worker for workers in fullest for worker in sorted(workers, key=lambda worker: worker.id.index)]
    return chosen[:count]


def _next_trial(run: Run) -> tuple[Trial | None, str, Commands]:
    """Return the trial to run next, why it runs now if the study does not know, and its creation if it is new."""
    for number in run.retries:
        if run.outage.is_due(number, run.now):
            run.retries.remove(number)
            return run.study.trials[number], "", []
    if run.search_ended is not None:
        return _next_repeat(run)
    if (promotion := run.study.next_promotion()) is not None:
        return promotion, "", []
    idle_since = next(iter(run.idle.values()))
    if (created := run.proposals.take(idle_since)) is not None:
        commands = attempts.record(run, created)
        return run.study.trials[-1], "", commands
    return _closing_promotion(run), "nothing else is left to run", []


def _next_repeat(run: Run) -> tuple[Trial | None, str, Commands]:
    """Return the next repeat and its creation; None if none is due."""
    created = run.confirming.take() if run.is_confirming and run.confirming is not None else None
    if created is None:
        return None, "", []
    commands = attempts.record(run, created)
    return run.study.trials[-1], "", commands


def _closing_promotion(run: Run) -> Trial | None:
    """Return the trial that is promoted only because the search would end without it.

    A running trial may yet turn out better than the paused ones, so the choice waits until none runs.
    """
    if run.attempts or run.retries or run.proposals.has_more:
        return None
    return run.study.closing_promotion()


def _ask_ahead(run: Run) -> Commands:
    """Have the optimizer propose before a worker needs it."""
    if run.ending is not None or run.search_ended is not None:
        return []
    question = run.proposals.ask(run.now)
    return [] if question is None else [question]


def say_if_slow(run: Run) -> Commands:
    """Say that workers wait for the optimizer, if they have waited long."""
    if run.ending is not None or run.search_ended is not None or not _free_members(run):
        return []
    if (overdue := run.proposals.overdue(run.now)) is None:
        return []
    index, seconds = overdue
    who = "1 worker waits" if len(run.idle) == 1 else f"{len(run.idle)} workers wait"
    return [
        Show(
            f"the optimizer has computed proposal {index} for {seconds:.0f} s, and {who} for it; if it hangs, Ctrl-C "
            "ends the search with the result so far"
        )
    ]


# -- the search ends ----------------------------------------------------------------------------------


def _end_at_target(run: Run) -> Commands:
    """End the search once a trial has reached the target."""
    target = run.settings.limits.target
    if target is None or run.search_ended is not None:
        return []
    best, loss = run.study.best, run.study.loss
    if best is None or loss(best.value) > loss(target):
        return []
    return end_search(run, Ending.TARGET, None)


def _close_if_done(run: Run) -> Commands:
    """End the run, or its search, once nothing of it is left."""
    if run.ending is not None or run.attempts or run.retries:
        return []
    if run.search_ended is not None:
        return [] if run.is_confirming else _end_run(run, run.search_ended, None)
    if run.proposals.has_more or run.study.next_promotion() is not None:
        return []  # for a worker that is to come, if none is free
    if _closing_promotion(run) is not None:
        return []
    error = run.failures.error(run.study.size)
    if error is not None:
        return end_search(run, Ending.ERROR, error)
    return _say_if_short(run) + end_search(run, Ending.COMPLETED, None)


def _say_if_short(run: Run) -> Commands:
    """Say that the search ends before ``n_trials`` because of the optimizer."""
    n_trials, size = run.study.problem.n_trials, run.study.size
    is_full = size >= (1 if n_trials is None else n_trials)
    if is_full or run.proposals.has_tried_all or run.settings.search.groups:
        return []
    why = " (it waits for a result, and nothing runs)" if run.proposals.is_waiting_for_change else ""
    trials = f"{size} trials" if n_trials is None else f"{size} of {n_trials} trials"
    name = run.settings.search.optimizer_name
    return [Show(f"{name} proposes no further configuration{why}, so the search ends after {trials}")]


def end_search(run: Run, reason: Ending, error: Exception | None) -> Commands:
    """End the search: no trial follows, and what runs is stopped. Confirmation and training follow, if planned."""
    if run.ending is not None or (run.search_ended is not None and reason is Ending.TIMEOUT):
        return []
    if run.search_ended is not None or not (
        reason.is_planned and (_is_followed_by_repeats(run) or _is_followed_by_training(run))
    ):
        return _end_run(run, reason, error)
    run.search_ended = reason
    run.retries.extend(trial.id for trial in run.study.repeats if trial.state is TrialState.PENDING)
    if run.confirming is not None:
        run.confirming.look_again()
    commands: Commands = []
    for attempt in run.attempts.values():
        commands += attempts.stop(attempt, StopReason.RUN_ENDED, cause=f"the search ended: {reason}")
    attempts.sort_retries(run)
    return commands + dispatch(run)


def _end_run(run: Run, reason: Ending, error: Exception | None) -> Commands:
    """End the run: every worker leaves, and ends what it runs."""
    run.ending, run.error = reason, error
    who = f" ({run.stopped_by})" if run.stopped_by else ""
    for attempt in run.attempts.values():
        attempts.stop_with_run(attempt, f"the run ended: {reason}{who}")
    return [command for worker in run.live for command in shut_down(run, worker)]


def shut_down(run: Run, worker: Worker) -> Commands:
    """Have a worker leave, once what it runs has ended."""
    run.idle.pop(worker.id.index, None)
    if worker.state is not WorkerState.BUSY:
        worker.state = WorkerState.DRAINING
    return [Send(worker.id, Shutdown())]


# -- the training -------------------------------------------------------------------------------------


def _is_followed_by_repeats(run: Run) -> bool:
    return run.confirming is not None and run.study.best is not None and not run.confirming.is_over


def _is_followed_by_training(run: Run) -> bool:
    last = run.study.trials[-1] if run.study.trials else None
    if run.settings.training is None or _config(run) is None:
        return False
    # A resumed run may have nothing to add.
    return last is None or not last.is_final_training or not last.is_over or last.state is TrialState.FAILED


def _begin_training(run: Run) -> Commands:
    """Make the training a trial, or continue that of an earlier driver, once; do nothing if no trial has a value.

    It is called when no trial of the search runs any more: the last to end may turn out to be the best.
    """
    plan, config = run.settings.training, _config(run)
    if run.has_trained or plan is None or config is None:
        return []
    run.has_trained = True
    number, before = len(run.study.trials), _earlier_training(run, config)
    if before is not None and not before.is_over and before.id == number - 1:
        run.retries.append(before.id)
        return []
    parent = None if before is None else before.id  # from whose state this one continues
    run.retries.append(number)
    return attempts.record(run, TrialCreated(number, dict(config), parent=parent, training=plan.steps))


def _earlier_training(run: Run, config: Config) -> Trial | None:
    """Return the last training of an earlier driver, if it has that configuration and was not completed."""
    last = next((trial for trial in reversed(run.study.trials) if trial.is_final_training), None)
    return last if last is not None and last.config == config and last.state is not TrialState.COMPLETED else None


def _n_trainers(run: Run) -> int:
    """Return how many workers train together now; 0 as long as others are waited for."""
    workers = run.workers.values()
    idle = sum(worker.state is WorkerState.IDLE for worker in workers)
    if idle >= run.size:
        run.short_since = None
        return run.size
    if run.short_since is None:
        run.short_since = run.now
    waited = run.now - run.short_since
    coming = len(workers) < run.size or any(worker.state is WorkerState.JOINING for worker in workers)
    is_patient = waited < PATIENCE or (coming and waited < 2 * PATIENCE)
    return 0 if is_patient or idle < (run.settings.failures.min_workers or run.size) else idle


def _config(run: Run) -> Config | None:
    """Return the configuration to train, once known."""
    if run.settings.training is not None and run.settings.training.config is not None:
        return run.settings.training.config
    if run.confirming is not None and (recommended := run.confirming.recommended) is not None:
        return recommended.config
    return run.study.best.config if run.study.best is not None else None
