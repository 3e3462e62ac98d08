"""The state machine behind one ``lagom`` call.

``handle(event, now)`` returns commands; it does no I/O and reads no clock. So the server's thread, a test and the
virtual-time simulator all drive the same object. The state is a :class:`~maggy_like.driver.state_machine.run.Run`, and
three modules of functions change it: ``workers``, which calls ``phases``, which calls ``attempts``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from maggy_like.driver.settings import Settings
from maggy_like.driver.state_machine import attempts, phases, workers
from maggy_like.driver.state_machine.failures import STORE_PATIENCE
from maggy_like.driver.state_machine.interface import (
    Command,
    Commands,
    Input,
    Show,
    StopRequested,
    SuggestionReady,
    Tick,
    TrialMessage,
    TrialSaid,
    WorkerBroken,
    WorkerEvent,
    WorkerGone,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
    WorkerReady,
    WorkerSeen,
)
from maggy_like.driver.state_machine.run import Run, Worker, WorkerState
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Checkpointed, Finished, Held, Opened, Reported, Silent, Waiting
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import Event
from optimizers.core.study import Study
from optimizers.core.trial import Trial

LOG_LENGTH = 1000
"""Inputs that a state machine remembers."""


class LoggedInput(NamedTuple):
    """An input of a state machine, and when it came."""

    now: float
    event: Input


class StateMachine:
    """Hands trials to workers until the search is over."""

    def __init__(
        self,
        study: Study,
        settings: Settings | None = None,
        *,
        size: int = 1,  # number of workers, or the most that may join
        grows: bool = False,  # whether workers come and go
        heartbeat_timeout: float = 15.0,  # seconds of silence after which a worker counts as lost
        store_patience: float = STORE_PATIENCE,  # seconds that a trial may wait for the store
    ) -> None:
        self.study = study
        self._run = Run(
            study,
            settings or Settings.of(study),
            size=size,
            grows=grows,
            heartbeat_timeout=heartbeat_timeout,
            patience=store_patience,
        )
        self._log: deque[LoggedInput] = deque(maxlen=LOG_LENGTH)
        workers.follow_number(self._run)

    @property
    def ending(self) -> Ending | None:
        """Why the run ended: ``completed`` or the reason it was stopped for; None before."""
        return self._run.ending

    @property
    def error(self) -> Exception | None:
        """What ``lagom`` must raise, if anything."""
        return self._run.error

    @property
    def stopped_by(self) -> str:
        """Name of the one who stopped the run from outside; empty if nobody did."""
        return self._run.stopped_by

    @property
    def stale(self) -> int:
        """Messages of lost incarnations or past attempts that were ignored."""
        return self._run.stale

    @property
    def objective(self) -> str | None:
        """Name of the optimized metric, once known."""
        return self._run.objective

    @property
    def running(self) -> list[Trial]:
        """The trials that run, according to the journal."""
        return [self.study.trials[number] for number in self._run.began_at]

    @property
    def workers(self) -> dict[int, Worker]:
        """The newest incarnation of each worker, by index."""
        return self._run.workers

    @property
    def keeps_files(self) -> bool:
        """Whether any attempt has left files."""
        return self._run.keeps_files

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and every worker has left."""
        return self._run.ending is not None and not any(self._run.live)

    @property
    def is_training(self) -> bool:
        """Whether search and confirmation are over, and the training is not."""
        return self._run.is_training

    @property
    def is_confirming(self) -> bool:
        """Whether the search is over, and its confirmation is not."""
        return self._run.is_confirming

    @property
    def log(self) -> Sequence[LoggedInput]:
        """The last :data:`LOG_LENGTH` inputs.

        Handed to a new machine with the same study and settings, in the same order and after the same :meth:`start`,
        they lead to the same decisions, if none is missing.
        """
        return tuple(self._log)

    def runs(self, known: WorkerId, trial: int, rank: int | None) -> bool:
        """Whether a worker runs that trial now, as that rank if there are several: only then may it log for it."""
        worker = self._run.find(known)
        if worker is None or worker.attempt is None or worker.attempt.trial != trial:
            return False
        return rank == (worker.attempt.rank(known) if len(worker.attempt.members) > 1 else None)

    def replay(self, events: Iterable[Event], written: float = 0.0) -> None:
        """Take in a journal's events, and when it was written to last. Call it before :meth:`start`."""
        self._run.known_until = max(self._run.known_until, written)
        for event in events:
            attempts.apply(self._run, event)

    def start(self, now: float) -> list[Command]:
        """Begin, or continue where the replayed journal ends."""
        self._run.now = now
        return phases.start(self._run)

    def handle(self, event: Input, now: float) -> list[Command]:
        """Take in one event. ``now`` is in seconds, on any clock that never runs backwards."""
        run = self._run
        run.now = now
        self._log.append(LoggedInput(now, event))
        match event:
            case TrialSaid() | WorkerSeen() | WorkerReady() | WorkerBroken() | WorkerGone():  # the most frequent first
                return _hear(run, event)
            case Tick(stalled=stalled, held=held):
                workers.discount_stall(run, stalled, held)
                return _tick(run)
            case SuggestionReady(error=error):
                if error is not None:
                    return phases.end_search(run, Ending.ERROR, error)
                run.proposals.answer(event, now)
                return phases.dispatch(run)
            case StopRequested():
                return _stop(run, event)
            case WorkerJoined():
                return workers.join(run, event)
            case WorkerLost():
                return workers.report_loss(run, event)
            case WorkerLeaving(worker=known, reason=reason):
                worker = run.find(known)
                return [] if worker is None or worker.leaving else workers.announce_leaving(run, worker, reason)


def _hear(run: Run, event: WorkerEvent) -> Commands:
    worker = run.find(event.worker)
    if worker is None:
        run.stale += 1
        return [workers.refuse(event.worker)]
    worker.seen = run.now
    match event:
        case TrialSaid(message=message):
            return _take(run, worker, message)
        case WorkerReady() if worker.state is WorkerState.JOINING:
            return workers.become_ready(run, worker)
        case WorkerBroken(message=message):
            return workers.break_down(run, worker, message)
        case WorkerGone():
            return workers.leave(run, worker)
    return []


def _take(run: Run, worker: Worker, message: TrialMessage) -> Commands:
    """Handle what a worker says of the attempt that it runs."""
    attempt = worker.attempt
    if attempt is None or attempt.trial != message.trial or attempt.number != message.attempt:
        run.stale += 1
        return []
    match message:
        case Reported():
            commands = attempts.report(run, attempt, message)
            if run.unclear is not None:
                return commands + phases.end_search(run, Ending.ERROR, run.unclear)
            return commands + phases.dispatch(run)  # a result in a rung may make a promotion due
        case Checkpointed():
            return attempts.save(run, attempt, message)
        case Waiting():
            return attempts.wait_for_store(run, attempt, worker, message)
        case Opened():
            return attempts.opened(attempt, worker, message)
        case Held():
            return attempts.halted(attempt, worker, message)
        case Silent():
            return attempts.silent(attempt, worker)
        case Finished():
            return phases.rank_ended(run, attempt, worker, message)


def _tick(run: Run) -> Commands:
    commands = workers.tick(run)
    waits = ((attempt.trial, since) for attempt in run.attempts.values() for since in attempt.waits.values())
    if (error := run.outage.error(waits, run.now)) is not None:
        commands += phases.end_search(run, Ending.ERROR, error)
    if run.is_after_search or run.retries:
        commands += phases.dispatch(run)
    return commands + phases.say_if_slow(run)


def _stop(run: Run, event: StopRequested) -> Commands:
    commands: Commands = []
    if event.by and run.ending is None:
        run.stopped_by = event.by
        commands.append(Show(f"stopped from outside: {event.by}"))
    return commands + phases.end_search(run, event.reason, event.error)
