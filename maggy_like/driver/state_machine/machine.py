"""The state machine behind one ``lagom`` call.

``handle(event, now)`` returns commands. It does no I/O and reads no clock, so the server's thread, a test and the
virtual-time simulator all drive the same object. Every change of the study passes through
:class:`~maggy_like.driver.state_machine.attempts.Attempts`, which also writes the event to the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from maggy_like.driver.state_machine.attempts import Attempts
from maggy_like.driver.state_machine.commands import Command, Commands, Replace, Send, Show
from maggy_like.driver.state_machine.common_failures import CommonFailures
from maggy_like.driver.state_machine.course import Course
from maggy_like.driver.state_machine.decommissioning import Decommissioning
from maggy_like.driver.state_machine.dispatch import Dispatcher
from maggy_like.driver.state_machine.growth import Growth
from maggy_like.driver.state_machine.inputs import (
    Input,
    StopRequested,
    SuggestionReady,
    Tick,
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
from maggy_like.driver.state_machine.proposals import Proposals
from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.driver.state_machine.store_outage import STORE_PATIENCE, StoreOutage
from maggy_like.driver.state_machine.store_visibility import store_needed, store_wanted
from maggy_like.driver.state_machine.training_phase import TrainingPhase, TrainingPlan
from maggy_like.driver.state_machine.trial_messages import TrialMessages
from maggy_like.driver.state_machine.worker_groups import WorkerGroups
from maggy_like.driver.state_machine.worker_pool import WorkerPool
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup, WorkerState
from maggy_like.errors import ConfigError, WorkerError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.messages import Refused
from optimizers.core.events import Event
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.study import Study
from optimizers.core.trial import Failure, TrialState

_MOST_NAMED = 10  # trials


class StateMachine:
    """Hands trials to workers until the search is over.

    Args:
        study: State of the study, new or replayed.
        objective: Name of the optimised metric, or None for the one that is reported.
        guessed: Whether the directions of the objectives were not given.
        n_configs: Number of configurations, if the search ends once each was tried.
        workers: Number of workers, or the limit of its growth.
        width: Number of workers per trial of the search.
        training: Training of all workers together once the search is over.
        keep: Number of saved states of an attempt to keep, in addition to that of its best value.
        max_attempts: Number of attempts of a trial that may fail or be lost before it fails for good.
        alike: Number of trials with identical failures that ends the search if none has succeeded; 0 for never. If the
            number of workers changes, a function of the number of trials that can run at a time.
        expected: Names of exceptions that do not count for that.
        trial_timeout: Seconds that one attempt may take.
        target: Value of the objective at which the search is over.
        heartbeat_timeout: Seconds of silence after which a worker counts as lost.
        store_patience: Seconds that a trial may wait for the store.

    Attributes:
        study: State of the study.
    """

    def __init__(
        self,
        study: Study,
        *,
        objective: str | None = None,
        guessed: bool = False,
        n_configs: int | None = None,
        workers: int = 1,
        width: int = 1,
        training: TrainingPlan | None = None,
        keep: int = 2,
        max_attempts: int = 3,
        alike: int | Callable[[int], int] = 0,
        expected: Collection[str] = (),
        trial_timeout: float | None = None,
        target: float | None = None,
        heartbeat_timeout: float = 15.0,
        store_patience: float = STORE_PATIENCE,
    ) -> None:
        self.study = study
        self._pool = WorkerPool()
        self._proposals = Proposals(study, workers // width, n_configs)
        failures = CommonFailures(alike if isinstance(alike, int) else 0, expected)
        self._attempts = Attempts(study, max_attempts, workers, keep, failures, guessed=guessed)
        self._growth = None if isinstance(alike, int) else Growth(self._proposals, failures, alike, width)
        self._alike = alike if isinstance(alike, int) else alike(1)
        self._training_phase = TrainingPhase(study, training)
        self._width = width
        self._trial_timeout = trial_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._groups = WorkerGroups()
        self._decommissioning = Decommissioning(self._groups)
        self._outage = StoreOutage(store_patience)
        dispatcher = Dispatcher(
            study, self._pool, self._groups, self._attempts, self._proposals, self._outage, self._training_phase, width
        )
        self._course = Course(study, dispatcher, target, objective)
        self._messages = TrialMessages(self._course, dispatcher, self._decommissioning)

    @property
    def ending(self) -> Ending | None:
        """Why the run ended: ``completed`` or the reason of its stop; None before."""
        return self._course.ending

    @property
    def error(self) -> Exception | None:
        """Exception that ``lagom`` must raise, if any."""
        return self._course.error

    @property
    def stopped_by(self) -> str:
        """Source of a stop from outside; empty if there was none."""
        return self._course.stopped_by

    @property
    def stale(self) -> int:
        """Number of ignored messages of lost incarnations or past attempts."""
        return self._course.stale

    @property
    def objective(self) -> str | None:
        """Name of the optimised metric, once known."""
        return self._course.objective

    @property
    def workers(self) -> dict[int, Worker]:
        """The newest incarnation of each worker, by index."""
        return self._pool.workers

    @property
    def is_over(self) -> bool:
        """Whether the search has ended and every worker has left."""
        return self._course.ending is not None and not any(self._pool)

    @property
    def is_training(self) -> bool:
        """Whether the search is over, and the training not."""
        return self._course.is_training

    def runs(self, known: WorkerId, trial: int, rank: int | None) -> bool:
        """Whether a worker runs that trial now, as that rank if there are several: only then may it log for it."""
        worker = self._pool.find(known)
        if worker is None or worker.group is None or worker.group.trial != trial:
            return False
        return rank == (worker.group.rank(known) if len(worker.group.members) > 1 else None)

    def replay(self, events: Iterable[Event], written: float = 0.0) -> None:
        """Replay a journal's events, with the time of its last write; call before :meth:`start`."""
        self._attempts.known_until = max(self._attempts.known_until, written)
        for event in events:
            self._attempts.replay(event)

    def start(self, now: float) -> list[Command]:
        """Begin, or continue at the end of the replayed journal."""
        self._course.now = now
        commands: Commands = []
        again = [
            trial.id
            for trial in self._attempts.alike.to_retry(self.study.trials, self._alike)
            if self.study.retry(trial)
        ]
        if again:
            which = ", ".join(map(str, again[:_MOST_NAMED])) + (", ..." if len(again) > _MOST_NAMED else "")
            commands.append(Show(f"trials that had failed identically are retried: {which}"))
        for trial in self.study.trials:
            if trial.objective is not None and self._course.objective is None:
                self._course.objective = trial.objective
            if trial.state is TrialState.RUNNING:
                commands += self._attempts.lose_with_driver(trial, now)
            elif trial.state is TrialState.PENDING:
                self._attempts.retries.append(trial.id)
        self._training_phase.take_up()
        self._attempts.sort_retries(training=self.is_training)
        self._proposals.go_on()
        commands += self._course.end_at_target()
        commands += self._course.ask_ahead()
        commands += self._course.close_if_done()
        return commands

    def handle(self, event: Input, now: float) -> list[Command]:
        """Process one event and return the commands that follow from it.

        Args:
            event: Input to process.
            now: Seconds on any clock that never runs backwards.
        """
        self._course.now = now
        match event:
            case TrialSaid() | WorkerSeen() | WorkerReady() | WorkerBroken() | WorkerGone():  # the most frequent first
                return self._heard(event)
            case Tick(stalled=stalled, held=held):
                self._pool.excuse(stalled, self._course.now)
                self._groups.excuse(max(stalled, held))
                return self._tick()
            case SuggestionReady():
                return self._suggested(event)
            case StopRequested():
                return self._stop(event)
            case WorkerJoined():
                return self._joined(event)
            case WorkerLost():
                return self._reported_lost(event)
            case WorkerLeaving(worker=known, reason=reason):
                worker = self._pool.find(known)
                return [] if worker is None or worker.leaving else self._leave(worker, reason)

    # -- workers ------------------------------------------------------------------------------

    def _joined(self, event: WorkerJoined) -> Commands:
        if self._pool.is_stale(event.worker):
            self._course.stale += 1
            return [Send(event.worker, Refused("a newer incarnation of this worker is known"))]
        commands: Commands = []
        before = self.workers.get(event.worker.index)
        if before is not None and before.is_live:
            commands += self._lost(before, "replaced by a newer incarnation")
        worker = self._pool.join(event, self._course.now)
        self._follow_workers()
        if self._growth is not None and self.study.trials:
            self._growth.joined(f"worker {worker.id.index} on {worker.host}", self._course.now)
        if self._course.ending is not None:
            commands += self._course.shut_down(worker)
        elif (unseen := event.store_unseen) is not None:
            if self.study.scheduler.may_promote:
                commands += self._course.end_search(Ending.ERROR, ConfigError(store_needed(worker, unseen)))
            elif unseen or self._width > 1 or self._training_phase.is_planned:
                commands.append(Show(store_wanted(worker, unseen)))
        return commands

    def _heard(self, event: WorkerEvent) -> Commands:
        worker = self._pool.find(event.worker)
        if worker is None:
            self._course.stale += 1
            return [Send(event.worker, Refused("this incarnation was declared lost"))]
        worker.seen = self._course.now
        match event:
            case TrialSaid(message=said):
                if (group := self._group_of(worker, said.trial, said.attempt)) is not None:
                    return self._messages.take(group, worker, said)
            case WorkerReady() if worker.state is WorkerState.JOINING:
                self._pool.set_idle(worker, self._course.now)
                return self._course.dispatch()
            case WorkerBroken(message=message) if worker.state is WorkerState.JOINING:
                error = WorkerError(f"worker {worker.id.index} on {worker.host}: {message}")
                return self._course.end_search(Ending.ERROR, error)
            case WorkerBroken(message=message):  # it could before, so its next incarnation may again
                return self._lost(worker, message)
            case WorkerGone():
                return self._gone(worker)
        return []

    def _group_of(self, worker: Worker, trial: int, attempt: int) -> WorkerGroup | None:
        """Return the group with which ``worker`` runs a trial, if it is ``(trial, attempt)``."""
        group = worker.group
        if group is not None and group.trial == trial and group.attempt == attempt:
            return group
        self._course.stale += 1
        return None

    def _leave(self, worker: Worker, reason: str) -> Commands:
        """Give a worker no more work, and end its attempt before its machine is removed."""
        self._decommissioning.announce(worker, reason, self._course.now)
        if worker.group is not None or self._course.ending is not None:
            return []
        line = f"worker {worker.id.index} on {worker.host} leaves: {reason}"
        return [Show(line), *self._course.shut_down(worker)]

    def _follow_workers(self) -> None:
        """Adapt the rules that depend on the number of workers."""
        if self._growth is not None:
            self._growth.follow(sum(1 for _ in self._pool))

    def _gone(self, worker: Worker) -> Commands:
        """Process the goodbye of a worker."""
        if self._course.ending is not None:
            return self._drop(worker, WorkerState.GONE, Failure(FailureKind.DRIVER_LOST, "the search was stopped"))
        if worker.leaving:
            return self._drop(worker, WorkerState.GONE, Failure(FailureKind.NODE_LEFT, worker.leaving))
        return self._lost(worker, "it left before the search was over")

    def _reported_lost(self, event: WorkerLost) -> Commands:
        """Process the engine's report that a worker is gone."""
        worker = self._pool.find(event.worker)
        if worker is None:
            return []
        kind = FailureKind.NODE_LOST if event.with_node else FailureKind.WORKER_LOST
        return self._lost(worker, event.reason, FailureKind.GANG_LOST if event.with_gang else kind)

    def _lost(self, worker: Worker, reason: str, kind: FailureKind = FailureKind.WORKER_LOST) -> Commands:
        message = f"worker {worker.id.index} on {worker.host} was lost: {reason}"
        if self._course.stopped_by:
            message = f"stopped from outside: {self._course.stopped_by}"
        # Else it is shown with its attempt, or, if all workers were lost, by what launches them again.
        shows = not worker.leaving and kind is not FailureKind.GANG_LOST
        shows = shows and (kind is not FailureKind.NODE_LOST or worker.group is None)
        failure = Failure(kind if self._course.ending is None else FailureKind.DRIVER_LOST, message)
        commands = self._drop(worker, WorkerState.LOST, failure)
        commands.append(Send(worker.id, Refused("this incarnation was declared lost")))  # it may yet live
        if self._course.ending is None:
            if shows:
                commands.append(Show(message))
            commands.append(Replace(worker.id))
            commands += self._course.dispatch()
        return commands

    def _drop(self, worker: Worker, state: WorkerState, failure: Failure) -> Commands:
        self._pool.retire(worker, state)
        self._follow_workers()
        if worker.group is not None and worker.id in worker.group.running:
            return self._course.ended(worker.group, worker, failure)
        return []

    def _suggested(self, event: SuggestionReady) -> Commands:
        if event.error is not None:
            return self._course.end_search(Ending.ERROR, event.error)
        self._proposals.answer(event, self._course.now)
        return self._course.dispatch()

    # -- time and ends ------------------------------------------------------------------------

    def _tick(self) -> Commands:
        commands: Commands = []
        for worker in self._pool.silent(self._course.now, self._heartbeat_timeout):
            # Where machines come and go, nobody can tell a silent worker from one whose machine is gone.
            kind = FailureKind.WORKER_LOST if self._growth is None else FailureKind.NODE_LOST
            reason = f"no message for {self._heartbeat_timeout:g} s"
            commands += self._lost(worker, reason, FailureKind.NODE_LEFT if worker.leaving else kind)
        commands += self._decommissioning.tick(self._course.now)
        if self._growth is not None:
            commands += self._growth.tick(sum(1 for _ in self._pool), self._course.now)
        if self._trial_timeout is not None:
            failure = Failure(FailureKind.TIMEOUT, f"took longer than trial_timeout={self._trial_timeout:g} s")
            for group in self._groups.overdue(self._trial_timeout, self._course.now):
                commands += self._groups.stop(group, Stopping.FAULT, failure=failure)
        if (error := self._outage.error(self._groups, self._course.now)) is not None:
            commands += self._course.end_search(Ending.ERROR, error)
        if self.is_training or self._attempts.retries:
            commands += self._course.dispatch()
        return commands

    def _stop(self, event: StopRequested) -> Commands:
        commands: Commands = []
        if event.by and self._course.ending is None:
            self._course.stopped_by = event.by
            commands.append(Show(f"stopped from outside: {event.by}"))
        commands += self._course.end_search(event.reason, event.error)
        return commands
