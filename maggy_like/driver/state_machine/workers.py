"""Workers join, leave and are lost."""

from __future__ import annotations

from maggy_like.driver.state_machine import attempts, phases
from maggy_like.driver.state_machine.interface import Commands, Replace, Send, Show, WorkerJoined, WorkerLost
from maggy_like.driver.state_machine.run import Run, Worker, WorkerState
from maggy_like.errors import ConfigError, WorkerError
from maggy_like.protocol.endings import Ending, StopReason
from maggy_like.protocol.messages import Refused
from maggy_like.protocol.task import WorkerId
from optimizers.core.trial import Failure, FailureKind

LEAVE_PATIENCE = 20.0
"""Seconds in which an attempt may save its state once more before the driver ends it; clouds give 30 and more."""

SETTLING = 3.0
"""Seconds for which workers that join are collected, to be shown in one line."""

REMEDY = "use directory=URL or store=URL of a location that all hosts share"
REMEDY_REFUSAL = "check the package, the credentials and the network on that host, or use another directory=URL"

# -- they join ----------------------------------------------------------------------------------------


def join(run: Run, event: WorkerJoined) -> Commands:
    """Take in a new incarnation of a worker. It takes no trials before it is ready."""
    before = run.workers.get(event.worker.index)
    if before is not None and before.id.incarnation >= event.worker.incarnation:
        run.stale += 1
        return [Send(event.worker, Refused("a newer incarnation of this worker is known"))]
    commands: Commands = []
    if before is not None and before.is_live:
        commands += lose(run, before, "replaced by a newer incarnation")
    worker = Worker(event.worker, event.host, event.accelerators, seen=run.now)
    run.workers[event.worker.index] = worker
    follow_number(run)
    if run.grows and run.study.trials:
        run.newcomers_since = run.newcomers_since if run.newcomers else run.now
        run.newcomers.append(worker.place)
    if run.ending is not None:
        commands += phases.shut_down(run, worker)
    elif event.store_unseen is not None:
        commands += _check_store(run, worker, event.store_unseen)
    return commands


def become_ready(run: Run, worker: Worker) -> Commands:
    """Give a worker its first trial."""
    phases.set_idle(run, worker)
    return phases.dispatch(run)


def follow_number(run: Run) -> None:
    """Adapt the rules that depend on the number of workers, if they come and go."""
    if run.grows:
        run.proposals.resize(run.at_a_time)
        run.failures.enough = run.settings.failures.enough(run.at_a_time)


def _check_store(run: Run, worker: Worker, unseen: str) -> Commands:
    """End the search if a promoted trial could not continue on a worker; else say what could not continue there.

    The worker does not see the run's store. ``unseen`` is why, if something refuses.
    """
    why = f" ({unseen})" if unseen else ""
    who = f"worker {worker.id.index} on host {worker.host!r} cannot access the store of this run{why}, so"
    remedy = REMEDY_REFUSAL if unseen else REMEDY
    if run.study.scheduler.may_promote:
        text = (
            f"{who} a promoted trial could not continue there from its checkpoint; {remedy}, or use "
            "optimizer=ASHA(mode='stopping')"
        )
        return phases.end_search(run, Ending.ERROR, ConfigError(text))
    if unseen or run.settings.size.workers_per_trial > 1 or run.settings.training is not None:
        return [Show(f"{who} an interrupted trial could not continue there; {remedy}", is_warning=True)]
    return []


# -- they leave ---------------------------------------------------------------------------------------


def announce_leaving(run: Run, worker: Worker, reason: str) -> Commands:
    """Give a worker no more work. Its attempt ends after the next checkpoint, before its machine is taken away."""
    run.any_leaves = True
    worker.leaving = reason
    if worker.attempt is not None and worker.attempt.leave_by is None:
        worker.attempt.leave_by = run.now + LEAVE_PATIENCE
    if worker.attempt is not None or run.ending is not None:
        return []
    return [Show(f"{worker.place} leaves: {reason}"), *phases.shut_down(run, worker)]


def leave(run: Run, worker: Worker) -> Commands:
    """Take in that a worker said goodbye."""
    if run.ending is not None:
        return _drop(run, worker, WorkerState.GONE, Failure(FailureKind.DRIVER_LOST, "the search was stopped"))
    if worker.leaving:
        return _drop(run, worker, WorkerState.GONE, Failure(FailureKind.NODE_LEFT, worker.leaving))
    return lose(run, worker, "it left before the search was over")


# -- they are lost ------------------------------------------------------------------------------------


def report_loss(run: Run, event: WorkerLost) -> Commands:
    """Take in that the engine has lost a worker."""
    worker = run.find(event.worker)
    if worker is None:
        return []
    kind = FailureKind.NODE_LOST if event.with_node else FailureKind.WORKER_LOST
    return lose(run, worker, event.reason, FailureKind.STAGE_LOST if event.with_others else kind)


def break_down(run: Run, worker: Worker, message: str) -> Commands:
    """Take in that a worker can run no trial, whichever it is."""
    if worker.state is WorkerState.JOINING:
        return phases.end_search(run, Ending.ERROR, WorkerError(f"{worker.place}: {message}"))
    return lose(run, worker, message)  # it could before, so its next incarnation may again


def lose(run: Run, worker: Worker, reason: str, kind: FailureKind = FailureKind.WORKER_LOST) -> Commands:
    """Give up a worker, and have the engine launch another."""
    message = f"{worker.place} was lost: {reason}"
    if run.stopped_by:
        message = f"stopped from outside: {run.stopped_by}"
    # Else it is shown with its attempt, or, if all workers fell, by the engine that launches them again.
    shows = not worker.leaving and kind is not FailureKind.STAGE_LOST
    shows = shows and (kind is not FailureKind.NODE_LOST or worker.attempt is None)
    failure = Failure(kind if run.ending is None else FailureKind.DRIVER_LOST, message)
    commands = _drop(run, worker, WorkerState.LOST, failure)
    commands.append(refuse(worker.id))  # it may yet live
    if run.ending is None:
        if shows:
            commands.append(Show(message))
        commands.append(Replace(worker.id))
        commands += phases.dispatch(run)
    return commands


def refuse(worker: WorkerId) -> Send:
    """Return the answer to an incarnation that does not count any more."""
    return Send(worker, Refused("this incarnation was declared lost"))


def _drop(run: Run, worker: Worker, state: WorkerState, failure: Failure) -> Commands:
    run.idle.pop(worker.id.index, None)
    worker.state = state
    follow_number(run)
    if worker.attempt is not None and worker.id in worker.attempt.running:
        return phases.rank_ended(run, worker.attempt, worker, failure)
    return []


# -- time passes --------------------------------------------------------------------------------------


def discount_stall(run: Run, stalled: float, held: float) -> None:
    """Do not count seconds for which the driver stood still as silence of the workers.

    Nor do they count as time of the attempts, like those in which it decided nothing (``held``), except for attempts
    that wait for the store.
    """
    for worker in run.live if stalled else ():
        worker.seen = min(run.now, worker.seen + stalled)
    for attempt in run.attempts.values() if (seconds := max(stalled, held)) else ():
        if not attempt.waits:
            attempt.discounted += seconds


def tick(run: Run) -> Commands:
    """Give up silent workers, end attempts that are overdue, and show who has joined."""
    commands: Commands = []
    for worker in silent(run):
        # If machines come and go, nobody can tell a silent worker from one whose machine is gone.
        kind = FailureKind.NODE_LOST if run.grows else FailureKind.WORKER_LOST
        reason = f"no message for {run.heartbeat_timeout:g} s"
        commands += lose(run, worker, reason, FailureKind.NODE_LEFT if worker.leaving else kind)
    if run.any_leaves:  # most runs need not look at every attempt
        for attempt in run.attempts.values():
            if attempt.leave_by is not None and run.now >= attempt.leave_by:
                commands += attempts.stop_before_leaving(attempt)
    if run.newcomers and run.now - run.newcomers_since >= SETTLING:
        live, count = sum(1 for _ in run.live), len(run.newcomers)
        who = run.newcomers[0] if count == 1 else f"{count} workers"
        run.newcomers.clear()
        commands.append(Show(f"{who} joined: {live} worker{'s' * (live != 1)} now"))
    if (limit := run.settings.failures.trial_timeout) is not None:
        failure = Failure(FailureKind.TIMEOUT, f"took longer than trial_timeout={limit:g} s")
        for attempt in run.attempts.values():
            if not attempt.waits and run.now - attempt.since - attempt.discounted > limit:
                commands += attempts.stop(attempt, StopReason.FAULT, failure=failure)
    return commands


def silent(run: Run) -> list[Worker]:
    """Return the workers that sent nothing for longer than the heartbeat's timeout.

    Idle ones come first: what one silent worker loses must not go to another that is silent too.
    """
    patience = run.heartbeat_timeout
    if run.now - run.heard_until <= patience:  # thousands need not be looked at in each tick
        return []
    found = [worker for worker in run.live if run.now - worker.seen > patience]
    run.heard_until = min((worker.seen for worker in run.live), default=run.now)
    return sorted(found, key=lambda worker: worker.state is not WorkerState.IDLE)
