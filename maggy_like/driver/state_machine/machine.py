"""The state machine behind one ``lagom`` call.

``handle(event, now)`` returns commands; it does no I/O and reads no clock, so the server's thread,
a test and the virtual-time simulator all drive the same object. Whatever changes the study goes
through :class:`~maggy_like.driver.state_machine.attempts.Attempts`, which also puts the event into the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from maggy_like.driver.state_machine.attempts import Attempts
from maggy_like.driver.state_machine.commands import Command, Keep, Replace, Send, Show
from maggy_like.driver.state_machine.common_failures import CommonFailures
from maggy_like.driver.state_machine.decommissioning import Decommissioning
from maggy_like.driver.state_machine.growth import Growth
from maggy_like.driver.state_machine.inputs import (
    Input,
    StopRequested,
    SuggestionReady,
    Tick,
    TrialMessage,
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
from maggy_like.driver.state_machine.store_outage import STORE_PATIENCE, StoreOutage
from maggy_like.driver.state_machine.store_visibility import store_needed, store_wanted
from maggy_like.driver.state_machine.training_phase import TrainingPhase, TrainingPlan
from maggy_like.driver.state_machine.worker_groups import WorkerGroups
from maggy_like.driver.state_machine.worker_pool import WorkerPool
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup, WorkerState
from maggy_like.errors import ConfigError, WorkerError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.messages import (
    Assign,
    Checkpointed,
    Finished,
    Held,
    Kept,
    Opened,
    Refused,
    Reported,
    Shutdown,
    Waiting,
)
from optimizers.core.events import CheckpointSaved, Event
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.study import Study
from optimizers.core.trial import Failure, Trial, TrialState


class StateMachine:
    """Hands trials to workers until the search is over.

    Args:
        study: The ledger, new or replayed.
        objective: Name of the optimised metric, or None to take the one that is reported.
        workers: Size of the gang, or how far it may grow.
        width: How many workers run a trial of the search together.
        training: What the gang shall train together once the search is over.
        keep: How many saved states of an attempt to keep, beside that of its best value.
        max_attempts: How many attempts of a trial may fail or be lost before it fails for good.
        alike: How many trials that fail alike end the search if none has succeeded; 0 for never. For a gang that grows,
            a function of how many can run at a time.
        expected: Names of exceptions that do not count for that.
        trial_timeout: Seconds that one attempt may take.
        target: Value of the objective with which the search is over.
        heartbeat_timeout: Seconds of silence after which a worker counts as lost.
        store_patience: Seconds that a trial may wait for the store.

    Attributes:
        ending: Why the search ended: ``completed`` or the reason it was stopped for; None before.
        error: What ``lagom`` must raise, if anything.
        stopped_by: Who stopped it from outside; empty where nobody did.
        stale: Messages of lost incarnations or past attempts that were ignored.
    """

    def __init__(
        self,
        study: Study,
        *,
        objective: str | None = None,
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
        self.objective = objective
        self._pool = WorkerPool()
        self.ending: Ending | None = None
        self.error: Exception | None = None
        self.stopped_by = ""
        self.stale = 0
        self._proposals = Proposals(study, workers // width)
        failures = CommonFailures(alike if isinstance(alike, int) else 0, expected)
        self._attempts = Attempts(study, max_attempts, workers, keep, failures)
        self._growth = None if isinstance(alike, int) else Growth(self._proposals, failures, alike, width)
        self._training_phase = TrainingPhase(study, training)
        self._width = width
        self._trial_timeout = trial_timeout
        self._target = target
        self._heartbeat_timeout = heartbeat_timeout
        self._groups = WorkerGroups()
        self._decommissioning = Decommissioning(self._groups)
        self._outage = StoreOutage(store_patience)
        self._out: list[Command] = []
        self._now = 0.0

    @property
    def workers(self) -> dict[int, Worker]:
        """The newest incarnation of each place, by index."""
        return self._pool.workers

    @property
    def is_over(self) -> bool:
        """Whether the search has ended and every worker has left."""
        return self.ending is not None and not any(self._pool)

    @property
    def is_training(self) -> bool:
        """Whether the search is over, and the training not."""
        return self._training_phase.search_ended is not None and self.ending is None

    def runs(self, known: WorkerId, trial: int, rank: int | None) -> bool:
        """Whether a worker runs that trial now, as that rank if there are several, so that it may speak in its name."""
        worker = self._pool.find(known)
        if worker is None or worker.group is None or worker.group.trial != trial:
            return False
        return rank == (worker.group.rank(known) if len(worker.group.members) > 1 else None)

    def replay(self, events: Iterable[Event]) -> None:
        """Take in a journal's events; call before :meth:`start`."""
        for event in events:
            self._attempts.replay(event)

    def start(self, now: float) -> list[Command]:
        """Begin, or go on where the replayed journal ends."""
        self._begin(now)
        for trial in self.study.trials:
            if trial.objective is not None and self.objective is None:
                self.objective = trial.objective
            if trial.state is TrialState.RUNNING:
                self._attempts.lose(trial, Failure(FailureKind.DRIVER_LOST, "the driver ended while the trial ran"))
            elif trial.state is TrialState.PENDING:
                self._attempts.retries.append(trial.id)
        self._training_phase.take_up()
        self._attempts.sort_retries(training=self.is_training)
        self._proposals.go_on()
        if self._is_at_target:
            self._end_search(Ending.TARGET, None)
        self._ask_ahead()
        self._close_if_done()
        return self._out

    def handle(self, event: Input, now: float) -> list[Command]:
        """Take in one event.

        Args:
            event: What happened.
            now: Seconds on any clock that never runs backwards.
        """
        self._begin(now)
        match event:
            case Tick(stalled=stalled):
                self._pool.excuse(stalled, self._now)
                self._tick()
            case SuggestionReady():
                self._suggested(event)
            case StopRequested():
                self._stop(event)
            case WorkerJoined():
                self._joined(event)
            case WorkerLost(worker=known, reason=reason, with_gang=with_gang, with_node=with_node):
                if (worker := self._pool.find(known)) is not None:
                    with_whom = FailureKind.GANG_LOST if with_gang else FailureKind.NODE_LOST if with_node else None
                    self._lost(worker, reason, with_whom or FailureKind.WORKER_LOST)
            case WorkerLeaving(worker=known, reason=reason):
                if (worker := self._pool.find(known)) is not None and not worker.leaving:
                    self._leave(worker, reason)
            case _:
                self._heard(event)
        return self._out

    def _begin(self, now: float) -> None:
        self._out, self._now = self._attempts.begin(now), now
        self._groups.begin(self._out)

    # -- workers ------------------------------------------------------------------------------

    def _joined(self, event: WorkerJoined) -> None:
        if self._pool.is_stale(event.worker):
            self.stale += 1
            self._out.append(Send(event.worker, Refused("a newer incarnation of this worker is known")))
            return
        before = self.workers.get(event.worker.index)
        if before is not None and before.is_live:
            self._lost(before, "replaced by a newer incarnation")
        worker = self._pool.join(event, self._now)
        self._follow()
        if self._growth is not None and self.study.trials:
            self._growth.joined(f"worker {worker.id.index} on {worker.host}", self._now)
        if self.ending is not None:
            self._shut_down(worker)
        elif (unseen := event.store_unseen) is not None:
            if self.study.scheduler.may_promote:
                self._end_search(Ending.ERROR, ConfigError(store_needed(worker, unseen)))
            elif unseen or self._width > 1 or self._training_phase.is_planned:
                self._out.append(Show(store_wanted(worker, unseen)))

    def _heard(self, event: WorkerEvent) -> None:
        worker = self._pool.find(event.worker)
        if worker is None:
            self.stale += 1
            self._out.append(Send(event.worker, Refused("this incarnation was declared lost")))
            return
        worker.seen = self._now
        match event:
            case WorkerReady():
                if worker.state is WorkerState.JOINING:
                    self._pool.set_idle(worker, self._now)
                    self._dispatch()
            case WorkerBroken(message=message) if worker.state is WorkerState.JOINING:
                self._end_search(Ending.ERROR, WorkerError(f"worker {worker.id.index} on {worker.host}: {message}"))
            case WorkerBroken(message=message):  # it could before, so another in its place may again
                self._lost(worker, message)
            case WorkerGone():
                self._gone(worker)
            case WorkerSeen():
                pass
            case _:
                if (group := self._group_of(worker, event.message.trial, event.message.attempt)) is not None:
                    self._told(group, worker, event.message)

    def _group_of(self, worker: Worker, trial: int, attempt: int) -> WorkerGroup | None:
        """The group with which ``worker`` runs a trial, if ``(trial, attempt)`` names that."""
        group = worker.group
        if group is not None and (group.trial, group.attempt) == (trial, attempt):
            return group
        self.stale += 1
        return None

    def _shut_down(self, worker: Worker) -> None:
        busy = worker.state is WorkerState.BUSY
        self._pool.retire(worker, WorkerState.BUSY if busy else WorkerState.DRAINING)
        self._out.append(Send(worker.id, Shutdown()))

    def _leave(self, worker: Worker, reason: str) -> None:
        """Give a worker no more work, and see to it that what it runs ends before its machine does."""
        self._decommissioning.announce(worker, reason, self._now)
        if worker.group is None and self.ending is None:
            self._out.append(Show(f"worker {worker.id.index} on {worker.host} leaves: {reason}"))
            self._shut_down(worker)

    def _follow(self) -> None:
        """Take in that the number of workers is another."""
        if self._growth is not None:
            self._growth.follow(sum(1 for _ in self._pool))

    def _gone(self, worker: Worker) -> None:
        if self.ending is None and worker.leaving:
            self._drop(worker, WorkerState.GONE, Failure(FailureKind.NODE_LEFT, worker.leaving))
        elif self.ending is None:
            self._lost(worker, "it left before the search was over")
        else:
            self._drop(worker, WorkerState.GONE, Failure(FailureKind.DRIVER_LOST, "the search was stopped"))

    def _lost(self, worker: Worker, reason: str, kind: FailureKind = FailureKind.WORKER_LOST) -> None:
        message = f"worker {worker.id.index} on {worker.host} was lost: {reason}"
        if self.stopped_by:
            message = f"stopped from outside: {self.stopped_by}"
        # With its attempt, or, of a gang that fell, by who launches it again.
        is_told = (
            bool(worker.leaving)
            or kind is FailureKind.GANG_LOST
            or (kind is FailureKind.NODE_LOST and worker.group is not None)
        )
        self._drop(worker, WorkerState.LOST, Failure(kind if self.ending is None else FailureKind.DRIVER_LOST, message))
        self._out.append(Send(worker.id, Refused("this incarnation was declared lost")))  # it may yet live
        if self.ending is None:
            if not is_told:
                self._out.append(Show(message))
            self._out.append(Replace(worker.id))
            self._dispatch()

    def _drop(self, worker: Worker, state: WorkerState, failure: Failure) -> None:
        self._pool.retire(worker, state)
        self._follow()
        if worker.group is not None and worker.id in worker.group.running:
            self._ended(worker.group, worker, failure)

    # -- trials -------------------------------------------------------------------------------

    def _told(self, group: WorkerGroup, worker: Worker, message: TrialMessage) -> None:
        """What one of a group's workers says of the attempt."""
        match message:
            case Reported():
                self._reported(group, message)
            case Checkpointed():
                self._saved(group, message)
            case Waiting():
                self._out += self._outage.heard(group, worker, message, self._now)
            case Opened():
                self._groups.opened(group, worker, message)
            case Held():
                self._groups.held(group, worker, message)
            case Finished():
                self._ended(group, worker, message)

    def _reported(self, group: WorkerGroup, message: Reported) -> None:
        trial = self.study.trials[group.trial]
        if self.objective is None:
            self.objective = message.objective
        self._attempts.measure(trial, message)
        stop_requested = trial.id in self._attempts.stop_requested
        if message.awaiting:
            self._groups.decide(group, stop=stop_requested)
        elif stop_requested:
            self._groups.stop(group)
        self._dispatch()  # a result in a rung may make a promotion due

    def _saved(self, group: WorkerGroup, message: Checkpointed) -> None:
        if message.name in group.saved:  # an older one that came again must not take the place of the newest
            self.stale += 1
            return
        group.saved.add(message.name)
        self._out += self._outage.served(group.trial, self._now)
        self._attempts.record(CheckpointSaved(group.trial, group.attempt, message.step, message.name))
        discard = self._attempts.states.superseded(group.trial)
        self._out.append(Send(group.members[0].id, Kept(group.trial, group.attempt, discard)))
        self._decommissioning.saved(group)

    def _ended(self, group: WorkerGroup, worker: Worker, end: Finished | Failure) -> None:
        """A rank is through; the attempt is over when all are."""
        if self._groups.ended(group, worker, end):
            self._groups.release(group)
            self._pool.release(group, self._now, is_over=self.ending is not None)
            for worker in group.members:
                if worker.leaving and worker.state is WorkerState.IDLE:
                    self._shut_down(worker)
            trial = self.study.trials[group.trial]
            is_cut = self.ending is not None or (self.is_training and not trial.training)
            answer = self._attempts.end(trial, group, is_cut=is_cut)
            self._settle_outage(trial)
            if answer is not None and trial.training and not answer.stored:
                self._out.append(Keep(answer.returned))
            self._attempts.sort_retries(training=self.is_training)
            if (error := self._attempts.alike.error()) is not None and not self.is_training:
                self._end_search(Ending.ERROR, error)
            self._dispatch()

    # -- work ---------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give work to idle workers while there is some; close when there will be none."""
        if self._is_at_target:
            self._end_search(Ending.TARGET, None)
        if self.is_training and not self._groups and (created := self._training_phase.begin()) is not None:
            self._attempts.record(created)
            self._attempts.retries.append(created.trial)
        while self.ending is None and (members := self._free_members()) and (trial := self._next_trial()) is not None:
            self._assign(members, trial)
        self._ask_ahead()
        self._close_if_done()

    def _free_members(self) -> list[Worker]:
        """The idle workers that would run the next attempt together; none while they are too few."""
        if not self.is_training:
            return self._pool.members(self._width)
        return (
            [] if self._groups else self._pool.members(self._training_phase.members(self.workers.values(), self._now))
        )

    def _next_trial(self) -> Trial | None:
        for number in self._attempts.retries:
            if self._outage.is_due(number, self._now):
                self._attempts.retries.remove(number)
                return self.study.trials[number]
        if self.is_training:
            return None
        if (promotion := self.study.next_promotion()) is not None:
            return promotion
        if (created := self._proposals.take(self._pool.idle_since)) is not None:
            self._attempts.record(created)
            return self.study.trials[-1]
        return self._closing_promotion()

    def _closing_promotion(self) -> Trial | None:
        """The trial that is due only because the search would end without it.

        While anything runs it may yet turn out better than what rests, so the choice waits for it.
        """
        if self._groups or self._attempts.retries or self._proposals.has_more:
            return None
        return self.study.closing_promotion()

    def _assign(self, members: list[Worker], trial: Trial) -> None:
        grant = self.study.grant(trial)
        attempt = trial.attempt + 1
        discard = self._attempts.states.unneeded(trial.id)
        self._attempts.record(self.study.started(trial, members[0].id.index, self._now, len(members)))
        saved = trial.checkpoint.name if trial.checkpoint is not None else None
        self._pool.engage(members)
        order = Assign(trial.id, attempt, trial.config, grant.budget, grant.milestones, self.objective, saved, discard)
        self._groups.start(order, members, self._now, placed=trial.training > 0)
        self._training_phase.started()

    def _ask_ahead(self) -> None:
        searching = self.ending is None and not self.is_training
        if searching and (question := self._proposals.ask(self._now)) is not None:
            self._out.append(question)

    def _suggested(self, event: SuggestionReady) -> None:
        if event.error is not None:
            self._end_search(Ending.ERROR, event.error)
            return
        self._proposals.answer(event, self._now)
        self._dispatch()

    # -- time and ends ------------------------------------------------------------------------

    def _tick(self) -> None:
        for worker in self._pool.silent(self._now, self._heartbeat_timeout):
            # Where machines come and go, one that is silent is gone, for all that is known.
            kind = FailureKind.WORKER_LOST if self._growth is None else FailureKind.NODE_LOST
            kind = FailureKind.NODE_LEFT if worker.leaving else kind
            self._lost(worker, f"not heard of for {self._heartbeat_timeout:g} s", kind)
        self._decommissioning.tick(self._groups, self._now)
        if self._growth is not None:
            self._out += self._growth.tick(sum(1 for _ in self._pool), self._now)
        if self._trial_timeout is not None:
            overdue = Failure(FailureKind.TIMEOUT, f"took longer than trial_timeout={self._trial_timeout:g} s")
            for group in self._groups:
                if not group.waits and self._now - group.since - group.excused > self._trial_timeout:
                    self._groups.stop(group, overdue)
        if (error := self._outage.error(self._groups, self._now)) is not None:
            self._end_search(Ending.ERROR, error)
        if self.is_training or self._attempts.retries:
            self._dispatch()

    def _settle_outage(self, trial: Trial) -> None:
        """Take in whether an attempt ended because the store refused."""
        failure = trial.failure
        if trial.state is TrialState.PENDING and failure is not None and failure.kind is FailureKind.STORE:
            self._out += self._outage.failed(trial.id, failure.message, self._now)
        else:
            self._outage.left(trial.id)

    @property
    def _is_at_target(self) -> bool:
        """Whether a trial has reached the target and the search has not ended yet."""
        if self._target is None or self.ending is not None or self._training_phase.search_ended is not None:
            return False
        best = self.study.best
        return best is not None and self.study.loss(best.value) <= self.study.loss(self._target)

    def _close_if_done(self) -> None:
        if self.ending is not None or self._groups or self._attempts.retries:
            return
        if self._training_phase.search_ended is not None:
            self._stop_all(self._training_phase.search_ended, None)
        elif not self._proposals.has_more and self._closing_promotion() is None:
            error = self._attempts.alike.error(self.study.size)
            self._end_search(Ending.COMPLETED if error is None else Ending.ERROR, error)

    def _stop(self, event: StopRequested) -> None:
        if event.by and self.ending is None:
            self.stopped_by = event.by
            self._out.append(Show(f"stopped from outside: {event.by}"))
        self._end_search(event.reason, event.error)

    def _end_search(self, reason: Ending, error: Exception | None) -> None:
        """No further trials; what runs is stopped. A training follows, if one is planned."""
        if self.ending is not None or (self._training_phase.search_ended is not None and reason is Ending.TIMEOUT):
            return
        if self._training_phase.search_ended is not None or not self._training_phase.follows(reason):
            self._stop_all(reason, error)
            return
        for group in self._groups:
            self._groups.interrupt(group)
        self._attempts.sort_retries(training=self.is_training)
        self._dispatch()

    def _stop_all(self, reason: Ending, error: Exception | None) -> None:
        if self.ending is not None:
            return
        self.ending, self.error = reason, error
        for worker in self._pool:
            self._shut_down(worker)
