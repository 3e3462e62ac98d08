"""Attempts start, report, save states, stop and end.

:func:`record` is the only function that changes the study while a run is on. It also puts the event into the journal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from maggy_like.driver.state_machine.interface import Append, Commands, Send, Show, StoreReturned
from maggy_like.driver.state_machine.notices import (
    show_failure,
    show_loss,
    warn,
    warn_if_silent,
    warn_if_uncounted,
    warn_if_unsaved,
    warn_of_cut,
    warn_of_default,
    warn_of_restart,
)
from maggy_like.driver.state_machine.run import Run, RunningAttempt, Worker, WorkerState, is_fault, standing
from maggy_like.errors import ConfigError, OptimizerError
from maggy_like.protocol.endings import StopReason
from maggy_like.protocol.messages import (
    MAX_NAMES,
    NO_FILES,
    UNKNOWN_FILES,
    Abort,
    Assign,
    Checkpointed,
    Decided,
    Finished,
    Halt,
    Held,
    Kept,
    Look,
    Meet,
    Opened,
    RankInfo,
    Reported,
    Stop,
    ToWorker,
    Waiting,
)
from maggy_like.protocol.task import WorkerId
from maggy_like.protocol.values import as_attributes
from optimizers.core.direction import contradiction, direction_hint, sign_hint
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Columns, Event, Measured
from optimizers.core.trial import Curve, Failure, FailureKind, Trial, TrialState

MAX_NODES = 20
"""A trial fails as the likely cause of lost machines after this many of them at the earliest."""

SLOWED = "reports faster than the driver can record (metrics: {}), so its report() waits; report fewer, or less often"
"""The message about a trial whose reports wait, shown once a run."""

_NOTHING: Columns = ([], [])

Attributes = dict[str, Any]

_NO_ATTRIBUTES: Attributes = {}


# -- the study and the journal ------------------------------------------------------------------------


def record(run: Run, event: Event) -> Commands:
    """Change the study, and append the event to the journal."""
    commands: Commands = []
    if isinstance(event, Measured) and not run.is_named:
        event, hint = _with_direction(run, event)
        commands += hint
    if isinstance(event, AttemptEnded):
        trial = run.study.trials[event.trial]
        if not run.is_sign_known:
            commands += _check_sign(run, event)
        if not trial.training:
            run.failures.take(event)
        apply(run, event)
        return [*commands, *warn_if_unsaved(run, trial), Append(event, trial.value)]
    apply(run, event)
    return [*commands, Append(event)]


def apply(run: Run, event: Event) -> None:
    """Change the study as the journal says."""
    run.study.apply(event)
    if type(event) is Measured:
        run.is_named = True
        if run.objective is None and not (event.returned and event.objective == "value"):  # a number without a name
            run.objective = event.objective
        return
    run.states.take(event)
    match event:
        case AttemptEnded():
            run.known_until = max(run.known_until, event.time)
            run.is_sign_known |= event.value is not None
            if not run.study.trials[event.trial].training:
                run.failures.replay(event)
            run.began_at.pop(event.trial, None)
        case AttemptStarted():
            run.known_until = max(run.known_until, event.time)
            run.began_at[event.trial] = _reached(run.study.trials[event.trial])


def _with_direction(run: Run, event: Measured) -> tuple[Measured, list[Show]]:
    """Return the first measurement with the direction that its metric's name settles, and a hint about that."""
    objectives = run.study.objectives
    hints: list[Show] = []
    settled = run.study.settled(event.objective) or objectives.directions[0]
    hint = direction_hint(event.objective, settled, given=objectives.said[0] is not None)
    if hint and not run.study.trials[event.trial].training:
        hints.append(Show(hint))
    return replace(event, direction=settled), hints


def _check_sign(run: Run, event: AttemptEnded) -> list[Show]:
    """Return a hint if the first result of the search looks like a loss with its sign changed."""
    trial, objectives = run.study.trials[event.trial], run.study.objectives
    if event.value is None or trial.training:
        return []
    names = objectives.given or (trial.objective or "value",)
    hints = []
    for number, (name, direction) in enumerate(zip(names, objectives.directions, strict=True)):
        final = event.value if number == 0 else event.metrics.get(name)
        values = [*(trial.curves[name].values if name in trial.curves else ()), *([] if final is None else [final])]
        hints.append(sign_hint(name, direction, values))
    return [Show(hint, is_warning=True) for hint in filter(None, hints)]


def _is_unclear(run: Run, trial: Trial, objective: str) -> bool:
    """Whether a first measurement leaves the direction open, or settles a wrong one, so that the search must end."""
    if run.study.objectives.is_open and not trial.training:
        if message := contradiction(objective):
            run.unclear = ConfigError(f"{message}. Then use resume=True, or start another run")
        else:
            try:
                run.study.check_direction(objective)
            except OptimizerError as error:
                run.unclear = error
    return run.unclear is not None


# -- an attempt starts --------------------------------------------------------------------------------


def start(run: Run, members: Sequence[Worker], trial: Trial, cause: str) -> Commands:
    """Have idle workers, in order of rank, run the next attempt of a trial together.

    ``cause`` is why it runs now, if the study does not know it.
    """
    grant = run.study.grant(trial)
    number = trial.attempt + 1
    discard = run.states.unneeded(trial.id)
    first, *others = (member.id.index for member in members)
    saved = trial.checkpoint.name if trial.checkpoint is not None else None
    older = run.states.older(saved) if saved is not None else ()
    commands = record(run, run.study.started(trial, first, run.now, others=tuple(others), cause=cause))
    order = Assign(
        trial.id,
        number,
        trial.config,
        grant.budget,
        grant.milestones,
        run.objective,
        is_search=run.study.problem.n_trials != 0,
        checkpoint=saved,
        discard=discard,
        older=older,
        open_ended=run.settings.search.open_ended and grant.budget == run.study.problem.max_budget,
        max_budget=0 if trial.training else run.study.problem.max_budget,
        files=NO_FILES if number == 1 else run.files.get(trial.id, UNKNOWN_FILES),
    )
    attempt = run.attempts[trial.id] = RunningAttempt(trial.id, number, tuple(members), run.now)
    infos = rank_infos(members) if trial.is_final_training or len(members) > 1 else [None]
    for worker, info in zip(members, infos, strict=True):
        del run.idle[worker.id.index]
        worker.state, worker.attempt = WorkerState.BUSY, attempt
        commands.append(Send(worker.id, replace(order, rank_info=info)))
    run.short_since = None
    return commands


def rank_infos(members: Sequence[Worker]) -> list[RankInfo]:
    """Return what each member must know of its rank, by rank."""
    hosts: dict[str, list[Worker]] = {}
    for member in members:
        hosts.setdefault(member.host, []).append(member)
    groups = list(hosts)
    return [
        RankInfo(
            rank=rank,
            world_size=len(members),
            local_rank=hosts[member.host].index(member),
            local_world_size=len(hosts[member.host]),
            group_rank=groups.index(member.host),
            group_world_size=len(groups),
            devices=_devices(hosts[member.host]),
        )
        for rank, member in enumerate(members)
    ]


def _devices(ranks: Sequence[Worker]) -> tuple[str, ...]:
    """Return the GPUs of a host's ranks: the first of each, in their order, then the others."""
    first = [rank.accelerators[0] for rank in ranks if rank.accelerators]
    others = [address for rank in ranks for address in rank.accelerators[1:]]
    return tuple(dict.fromkeys([*first, *others]))


# -- it reports and saves -----------------------------------------------------------------------------


def report(run: Run, attempt: RunningAttempt, message: Reported) -> Commands:
    """Take in measurements, after which a rule may stop the trial."""
    trial = run.study.trials[attempt.trial]
    commands = _measure(run, trial, message)
    if run.unclear is not None:
        return commands
    if message.awaiting:  # so does every rank at that step
        if trial.stop_due:
            _decide_to_stop(attempt, StopReason.RULE)
        asks = attempt.stop_reason.asks_to_end
        return [*commands, *_send(attempt.running, Decided(attempt.trial, attempt.number, asks))]
    return commands + stop(attempt, StopReason.RULE) if trial.stop_due else commands


def _measure(run: Run, trial: Trial, message: Reported) -> Commands:
    """Record measurements.

    An attempt that continues from a checkpoint, or starts over, repeats steps: their measurements are left out.
    """
    commands: Commands = []
    if _is_unclear(run, trial, message.objective):
        return commands
    columns = message.columns
    if trial.attempt > 1 and trial.reported is not None:
        steps, _ = columns.get(message.objective, _NOTHING)
        if trial.rested and trial.checkpoint is None and steps and steps[0] <= trial.reported:
            commands += warn_of_restart(run, trial, steps[0])
        fresh = ((name, _fresh(trial.curves.get(name), column)) for name, column in columns.items())
        columns = {name: column for name, column in fresh if column is not None}
    if len(columns) + len(trial.curves) > MAX_NAMES:
        columns, warnings = _bounded(run, trial, columns, message.objective)
        commands += warnings
    if message.slowed:
        commands += warn(run, "slowed", SLOWED.format(len(message.columns)), trial)
    if not columns:
        return commands
    commands += record(run, Measured(trial.id, trial.attempt, message.objective, columns))
    steps, values = columns.get(message.objective, _NOTHING)
    if run.settings.search.open_ended and steps and steps[-1] > run.study.problem.max_budget:
        commands += warn_of_default(run, trial)
    if not all(map(math.isfinite, values)):
        step, value = next(each for each in zip(steps, values, strict=True) if not math.isfinite(each[1]))
        commands += warn(
            run, f"nan-{trial.id}", f"reported {value} at step {step}; it ranks worst", trial, is_mistake=False
        )
    return commands


def _fresh(curve: Curve | None, column: Columns) -> Columns | None:
    """Return the part of a column that lies past the end of its curve; None if there is none."""
    steps, values = column
    if curve is None or not len(curve) or not steps or steps[0] > curve.last_step:
        return column if steps else None
    first = next((index for index, step in enumerate(steps) if step > curve.last_step), None)
    return None if first is None else (steps[first:], values[first:])


def _bounded(
    run: Run, trial: Trial, columns: dict[str, Columns], objective: str
) -> tuple[dict[str, Columns], Commands]:
    """Return the columns without new metrics past the limit, and a warning if there were any.

    A worker checks the limit for one attempt; each further attempt may bring other metrics.
    """
    warnings: Commands = []
    known = {name: column for name, column in columns.items() if name in trial.curves or name == objective}
    free = max(0, MAX_NAMES - len(trial.curves.keys() | known.keys()))
    new = [name for name in columns if name not in known]
    if len(new) > free:
        text = f"reported more than {MAX_NAMES} different metrics; others are left out"
        warnings = warn(run, f"names-{trial.id}", text, trial)
    return known | {name: columns[name] for name in new[:free]}, warnings


def save(run: Run, attempt: RunningAttempt, message: Checkpointed) -> Commands:
    """Take in that a state was saved. An attempt on a worker that leaves ends at its next report."""
    if message.name in attempt.saved:  # a repeated older one must not replace the newest
        run.stale += 1
        return []
    attempt.saved.add(message.name)
    commands: Commands = [*run.outage.served(attempt.trial, run.now)]
    commands += record(run, CheckpointSaved(attempt.trial, attempt.number, message.step, message.name))
    discard = run.states.superseded(attempt.trial)
    commands.append(Send(attempt.members[0].id, Kept(attempt.trial, attempt.number, discard)))
    return commands if attempt.leave_by is None else commands + stop_before_leaving(attempt)


def wait_for_store(run: Run, attempt: RunningAttempt, worker: Worker, message: Waiting) -> Commands:
    """Take in that a worker waits for the store, or is served again."""
    if not message.is_over:
        attempt.waits.setdefault(worker.id, run.now)
        return [*run.outage.waits(attempt.trial, message.reason, run.now)] if message.reason else []
    since = min(attempt.waits.values(), default=run.now)
    if attempt.waits.pop(worker.id, None) is not None and not attempt.waits:
        attempt.discounted += run.now - since
    return [] if attempt.waits else [*run.outage.served(attempt.trial, run.now)]


# -- its ranks act together ---------------------------------------------------------------------------
# All ranks of an attempt stop in the same report: the driver halts them, each says how many reports it has made, and
# they continue to the first report that none of them has passed. A rank that fails ends the attempt for all.


def stop(attempt: RunningAttempt, why: StopReason, *, failure: Failure | None = None, cause: str = "") -> Commands:
    """Have all ranks end at the same next report, unless they were asked to before.

    A fault is recorded as ``failure``. ``cause`` is why the search is over, if that ends the attempt.
    """
    if not _decide_to_stop(attempt, why, failure=failure, cause=cause):
        return []
    if len(attempt.members) == 1:
        return _send(attempt.running, Stop(attempt.trial, attempt.number, reason=why))
    if attempt.halted is not None:
        return []
    attempt.halted = {}
    return _send(attempt.running, Halt(attempt.trial, attempt.number, why))


def stop_with_run(attempt: RunningAttempt, cause: str) -> None:
    """Note that an attempt ends with its run, which its workers are asked to leave."""
    _decide_to_stop(attempt, StopReason.RUN_ENDED, cause=cause)


def stop_before_leaving(attempt: RunningAttempt) -> Commands:
    """End an attempt before the machine of one of its workers is taken away. That costs its trial nothing."""
    leaver = next(member for member in attempt.members if member.leaving)
    failure = Failure(FailureKind.NODE_LEFT, f"{leaver.place} leaves: {leaver.leaving}")
    return stop(attempt, StopReason.FAULT, failure=failure)


def _decide_to_stop(
    attempt: RunningAttempt, why: StopReason, *, failure: Failure | None = None, cause: str = ""
) -> bool:
    """Take in why an attempt must end early. Return whether its workers must still be asked to stop."""
    before = attempt.stop_reason
    if why <= before:
        return False
    attempt.stop_reason = why
    attempt.failure, attempt.cause = failure or attempt.failure, cause or attempt.cause
    return not before.asks_to_end


def opened(attempt: RunningAttempt, worker: Worker, message: Opened) -> Commands:
    """Tell the other ranks where to meet."""
    others = [member.id for member in attempt.members if member is not worker]
    return _send(others, Meet(message.trial, message.attempt, message.host, message.port))


def halted(attempt: RunningAttempt, worker: Worker, message: Held) -> Commands:
    """Note the number of reports of a halted rank."""
    if attempt.halted is None:
        return []
    attempt.halted[attempt.rank(worker.id)] = message.reports
    return _continue(attempt)


def silent(attempt: RunningAttempt, worker: Worker) -> Commands:
    """Ask where the other ranks are, as long as they run: a silent rank may wait for one of them."""
    others = [known for known in attempt.running if known != worker.id]
    return _send(others, Look(attempt.trial, attempt.number))


def rank_ended(attempt: RunningAttempt, worker: Worker, end: Finished | Failure) -> Commands:
    """Note a rank's end. The attempt is over with the last one."""
    attempt.ends[attempt.rank(worker.id)] = end
    if attempt.has_ended:
        return []
    if is_fault(end):
        _decide_to_stop(attempt, StopReason.RANK_FAILED)
        return _send(attempt.running, Abort(attempt.trial, attempt.number))
    return _continue(attempt)


def _continue(attempt: RunningAttempt) -> Commands:
    """Say at which report to stop, once every rank has said how many it has made; until then they wait."""
    if (at := attempt.stop_at) is None:
        return []
    return _send(attempt.running, Stop(attempt.trial, attempt.number, at, attempt.stop_reason))


def _send(workers: Iterable[WorkerId], message: ToWorker) -> Commands:
    return [Send(worker, message) for worker in workers]


# -- it ends ------------------------------------------------------------------------------------------


def end(run: Run, attempt: RunningAttempt) -> Commands:
    """Record an attempt's end, as its workers ended and as the driver had decided (see :class:`StopReason`)."""
    trial, end = run.study.trials[attempt.trial], attempt.end()
    _note_files(run, attempt)
    if isinstance(end, Failure):
        return _lose(run, trial, attempt.failure or end, run.now, attempt.cause)
    if end.outcome == "returned":
        return _conclude(run, trial, end)
    kept = as_attributes(end.attributes)
    is_cut = attempt.stop_reason is StopReason.RUN_ENDED
    if is_cut and (end.outcome != "raised" or end.kind is FailureKind.COLLECTIVE):
        return _lose(run, trial, _STOPPED, run.now, attempt.cause, kept)
    if attempt.failure is not None:
        message = f"{attempt.failure.message}{standing(attempt.ends)}"
        failure = replace(attempt.failure, message=message, traceback=end.traceback)
        return _lose(run, trial, failure, run.now, attributes=kept)
    if end.outcome == "raised" or (end.outcome == "died" and not attempt.stop_reason.asks_to_end):
        kind = end.kind or FailureKind.EXCEPTION
        failure = Failure(kind, end.message, end.traceback, tuple(end.types), end.place)
        return _lose(run, trial, failure, run.now, attributes=kept)
    return _end_stopped(run, trial, run.now, kept)


_STOPPED = Failure(FailureKind.DRIVER_LOST, "the search was stopped")


def _note_files(run: Run, attempt: RunningAttempt) -> None:
    """Note whether an attempt has left files for the next one, which waits for them; a lost worker does not say."""
    ends = attempt.ends.values()
    if any(isinstance(end, Finished) and end.files for end in ends):
        run.files[attempt.trial] = attempt.number
    elif all(isinstance(end, Finished) for end in ends):
        run.files.setdefault(attempt.trial, NO_FILES)


def _conclude(run: Run, trial: Trial, message: Finished) -> Commands:
    """End an attempt whose function returned."""
    commands = warn_if_silent(run, trial) + warn_if_uncounted(run, trial, message.value)
    if message.cut_at is not None:
        commands += warn_of_cut(run, trial, message.cut_at)
    if trial.is_final_training and not message.stored:
        commands.append(StoreReturned(message.returned))
    attributes = as_attributes(message.attributes)
    changes = run.study.conclude(trial, message.value, message.metrics, run.now, attributes, whole=message.whole)
    named = (change.objective for change in changes if isinstance(change, Measured))
    if not trial.training and (run.unclear or any(_is_unclear(run, trial, name) for name in named)):
        return _lose(run, trial, _STOPPED, run.now)
    for change in changes:
        commands += record(run, change)
    if trial.state is TrialState.FAILED and trial.failure is not None:
        commands += show_failure(run, trial, trial.failure)
    return commands


def _end_stopped(run: Run, trial: Trial, now: float, attributes: Attributes) -> Commands:
    cause = run.study.scheduler.why_stopped(trial.id) if trial.stop_due else ""
    ended = AttemptEnded(trial.id, trial.attempt, TrialState.STOPPED, now, cause=cause, attributes=attributes)
    return record(run, ended)


def _fail(run: Run, trial: Trial, failure: Failure, now: float, attributes: Attributes) -> Commands:
    """End a trial for good, without a usable value."""
    ended = AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure, attributes=attributes)
    return [*record(run, ended), *show_failure(run, trial, failure)]


def _lose(
    run: Run, trial: Trial, failure: Failure, now: float, cause: str = "", attributes: Attributes = _NO_ATTRIBUTES
) -> Commands:
    """End an attempt that failed or was cut off: its trial stops if a rule had decided so, and is retried otherwise.

    The trial fails for good if a retry would be wasted: after the last of ``max_attempts``, or if this attempt got no
    further than the one before and failed in the same way. ``cause`` is that of a failure which does not name it.
    """
    most = run.settings.failures.max_attempts
    if trial.stop_due:
        return _end_stopped(run, trial, now, attributes)
    if failure.kind.is_final:
        return _fail(run, trial, failure, now, attributes)
    if failure.kind.counts and trial.losses + 1 >= most:
        nth = f" (attempt {trial.losses + 1} of {most})" if most > 1 else ""
        return _fail(run, trial, replace(failure, message=failure.message + nth), now, attributes)
    if (losses := _most_losses(run, failure)) is not None and trial.stage_losses + 1 >= losses:
        nth = f" (loss of workers {trial.stage_losses + 1} of {losses})"
        return _fail(run, trial, Failure(failure.kind, failure.message + nth), now, attributes)
    if _is_repeated(run, trial, failure):
        message = f"{failure.message} (attempt {trial.attempt}, just as the one before)"
        return _fail(run, trial, replace(failure, message=message), now, attributes)
    state = TrialState.PENDING
    ended = AttemptEnded(trial.id, trial.attempt, state, now, failure=failure, cause=cause, attributes=attributes)
    commands = record(run, ended)
    run.retries.append(trial.id)
    return [*commands, *show_loss(trial, failure)]


def lose_with_driver(run: Run, trial: Trial, now: float) -> Commands:
    """End an attempt that ran when an earlier driver ended. It has not run in the time since then."""
    ended = min(now, max(run.known_until, trial.started or 0.0))
    return _lose(run, trial, Failure(FailureKind.DRIVER_LOST, "the driver ended while the trial ran"), ended)


def sort_retries(run: Run) -> None:
    """Keep those retries that may run now: those of the search, of the confirmation or of the training."""
    for number in list(run.retries):
        trial = run.study.trials[number]
        is_due = (
            (run.is_confirming if trial.repeat is not None else run.is_training)
            if trial.training
            else not run.is_after_search
        )
        if not is_due:
            run.retries.remove(number)


def _most_losses(run: Run, failure: Failure) -> int | None:
    """Return how many losses of all workers, or of machines, fail a trial; None if this failure is not one.

    If all workers are lost, nobody knows which trial was the cause. So each worker adds ``max_attempts``.
    """
    if not failure.kind.is_stage_loss:
        return None
    most = run.settings.failures.max_attempts * run.size
    return max(MAX_NODES, most) if failure.kind is FailureKind.NODE_LOST else most


def _is_repeated(run: Run, trial: Trial, failure: Failure) -> bool:
    """Whether the attempt before had the same fault, and this one got no further: the next would have it too."""
    before = trial.failure  # of the attempt before, until this one has ended
    if before is None or not failure.kind.is_fault:
        return False
    return before.cause == failure.cause and _reached(trial) == run.began_at[trial.id]


def _reached(trial: Trial) -> tuple[int, int]:
    """Return how far a trial is: the newest step that was measured, and that of its checkpoint."""
    return trial.step, -1 if trial.checkpoint is None else trial.checkpoint.step
