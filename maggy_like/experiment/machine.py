"""The state machine behind one ``lagom`` call.

``handle(event, now)`` returns commands; it does no I/O and reads no clock, so the server's thread,
a test and the virtual-time simulator all drive the same object. Whatever changes the study goes
through :class:`~maggy_like.experiment.attempts.Attempts`, which also puts the event into the journal.
"""

from __future__ import annotations

from collections.abc import Iterable

from maggy_like.errors import ConfigError, WorkerError
from maggy_like.experiment.attempts import Attempts
from maggy_like.experiment.commands import Command, Replace, Send, Show
from maggy_like.experiment.inputs import (
    Input,
    StopRequested,
    SuggestionReady,
    Tick,
    TrialCheckpointed,
    TrialFinished,
    TrialReported,
    WorkerBroken,
    WorkerGone,
    WorkerId,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    WorkerSeen,
)
from maggy_like.experiment.proposals import Proposals
from maggy_like.experiment.workers import Worker, WorkerState
from maggy_like.messages import Assign, Checkpointed, Decided, Kept, Refused, Reported, Shutdown, Stop
from optimizers.events import CheckpointSaved, Event
from optimizers.study import DRIVER_LOST, GANG_LOST, Study
from optimizers.trial import Failure, Trial, TrialState


class StateMachine:
    """Hands trials to workers until the search is over.

    Args:
        study: The ledger, new or replayed.
        objective: Name of the optimised metric, or None to take the one that is reported.
        workers: Size of the gang: how many proposals to keep ready where results do not matter.
        max_attempts: How many attempts of a trial may fail or be lost before it fails for good.
        trial_timeout: Seconds that one attempt may take.
        heartbeat_timeout: Seconds of silence after which a worker counts as lost.

    Attributes:
        ending: Why the search ended: ``completed`` or the reason it was stopped for; None before.
        error: What ``lagom`` must raise, if anything.
        stale: Messages of lost incarnations or past attempts that were ignored.
    """

    def __init__(
        self,
        study: Study,
        *,
        objective: str | None = None,
        workers: int = 1,
        max_attempts: int = 3,
        trial_timeout: float | None = None,
        heartbeat_timeout: float = 15.0,
    ) -> None:
        self.study = study
        self.objective = objective
        self.workers: dict[int, Worker] = {}
        self.ending: str | None = None
        self.error: Exception | None = None
        self.stale = 0
        self._proposals = Proposals(study, workers)
        self._attempts = Attempts(study, max_attempts, workers)
        self._trial_timeout = trial_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._idle: dict[int, float] = {}  # since when workers are idle by index, in order of idling
        self._busy = 0
        self._out: list[Command] = []
        self._now = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the search has ended and every worker has left."""
        return self.ending is not None and not any(worker.is_live for worker in self.workers.values())

    def replay(self, events: Iterable[Event]) -> None:
        """Take in a journal's events; call before :meth:`start`."""
        for event in events:
            self._attempts.replay(event)

    def start(self, now: float) -> list[Command]:
        """Begin, or go on where the replayed journal ends."""
        self._out, self._now = self._attempts.begin(now), now
        for trial in self.study.trials:
            if trial.objective is not None and self.objective is None:
                self.objective = trial.objective
            if trial.state is TrialState.RUNNING:
                self._attempts.lose(trial, Failure(DRIVER_LOST, "the driver ended while the trial ran"))
            elif trial.state is TrialState.PENDING:
                self._attempts.retries.append(trial.id)
        self._proposals.go_on()
        self._ask_ahead()
        self._close_if_done()
        return self._out

    def handle(self, event: Input, now: float) -> list[Command]:
        """Take in one event.

        Args:
            event: What happened.
            now: Seconds on any clock that never runs backwards.
        """
        self._out, self._now = self._attempts.begin(now), now
        match event:
            case Tick():
                self._tick()
            case SuggestionReady():
                self._suggested(event)
            case StopRequested():
                self._stop_all(event.reason, event.error)
            case WorkerJoined():
                self._joined(event)
            case WorkerLost(worker=known, reason=reason, with_gang=with_gang):
                if (worker := self._worker(known)) is not None:
                    self._lost(worker, reason, GANG_LOST if with_gang else "worker_lost")
            case _:
                self._heard(event)
        return self._out

    # -- workers ------------------------------------------------------------------------------

    def _worker(self, known: WorkerId) -> Worker | None:
        """The live worker of that incarnation, or None for a stale one."""
        worker = self.workers.get(known.index)
        if worker is not None and worker.id == known and worker.is_live:
            return worker
        return None

    def _joined(self, event: WorkerJoined) -> None:
        before = self.workers.get(event.worker.index)
        if before is not None and before.id.epoch >= event.worker.epoch:
            self.stale += 1
            self._out.append(Send(event.worker, Refused("a newer incarnation of this worker is known")))
            return
        if before is not None and before.is_live:
            self._lost(before, "replaced by a newer incarnation")
        worker = Worker(event.worker, event.host, event.accelerators, seen=self._now)
        self.workers[event.worker.index] = worker
        if self.ending is not None:
            self._shut_down(worker)
        elif self.study.scheduler.may_promote and not event.store_visible:
            error = ConfigError(
                f"worker {worker.id.index} on host {worker.host!r} does not see the store of this run, so a "
                "promoted trial could not go on there from its checkpoint; pass store=URL of a place that "
                "all hosts share, or use optimizer='asha' with mode='stopping'"
            )
            self._stop_all("error", error)

    def _heard(
        self,
        event: WorkerReady | WorkerSeen | WorkerBroken | WorkerGone | TrialReported | TrialCheckpointed | TrialFinished,
    ) -> None:
        worker = self._worker(event.worker)
        if worker is None:
            self.stale += 1
            self._out.append(Send(event.worker, Refused("this incarnation was declared lost")))
            return
        worker.seen = self._now
        match event:
            case WorkerReady():
                if worker.state is WorkerState.JOINING:
                    self._set_idle(worker)
                    self._dispatch()
            case WorkerBroken(message=message):
                self._stop_all("error", WorkerError(f"worker {worker.id.index} on {worker.host}: {message}"))
            case WorkerGone():
                self._gone(worker)
            case TrialReported(message=message):
                if (trial := self._running(worker, message.trial, message.attempt)) is not None:
                    self._reported(worker, trial, message)
            case TrialCheckpointed(message=saved):
                if (trial := self._running(worker, saved.trial, saved.attempt)) is not None:
                    self._saved(worker, trial, saved)
            case TrialFinished(message=finished):
                if (trial := self._running(worker, finished.trial, finished.attempt)) is not None:
                    self._finished(worker, trial, event)

    def _running(self, worker: Worker, number: int, attempt: int) -> Trial | None:
        """The trial that ``worker`` runs, if ``(number, attempt)`` names it."""
        if worker.trial == number:
            trial = self.study.trials[number]
            if trial.attempt == attempt:
                return trial
        self.stale += 1
        return None

    def _set_idle(self, worker: Worker) -> None:
        worker.release(WorkerState.IDLE)
        self._idle[worker.id.index] = self._now

    def _release(self, worker: Worker) -> None:
        """Take the finished trial off a busy worker."""
        self._busy -= 1
        if self.ending is None:
            self._set_idle(worker)
        else:
            worker.release(WorkerState.DRAINING)

    def _shut_down(self, worker: Worker) -> None:
        self._idle.pop(worker.id.index, None)
        if worker.state is not WorkerState.BUSY:
            worker.state = WorkerState.DRAINING
        self._out.append(Send(worker.id, Shutdown()))

    def _gone(self, worker: Worker) -> None:
        if self.ending is None:
            self._lost(worker, "it left before the search was over")
        else:
            self._drop(worker, WorkerState.GONE, Failure(DRIVER_LOST, "the search was stopped"))

    def _lost(self, worker: Worker, reason: str, kind: str = "worker_lost") -> None:
        message = f"worker {worker.id.index} on {worker.host} was lost: {reason}"
        self._drop(worker, WorkerState.LOST, Failure(kind if self.ending is None else DRIVER_LOST, message))
        self._out.append(Send(worker.id, Refused("this incarnation was declared lost")))  # it may yet live
        if self.ending is None:
            self._out.append(Show(message))
            self._out.append(Replace(worker.id))
            self._dispatch()

    def _drop(self, worker: Worker, state: WorkerState, failure: Failure) -> None:
        self._idle.pop(worker.id.index, None)
        if worker.trial is not None:
            trial = self.study.trials[worker.trial]
            self._busy -= 1
            failure = worker.failure or failure
            worker.release(state)
            self._attempts.lose(trial, failure)
        worker.release(state)

    # -- trials -------------------------------------------------------------------------------

    def _reported(self, worker: Worker, trial: Trial, message: Reported) -> None:
        if self.objective is None:
            self.objective = message.objective
        self._attempts.measure(trial, message)
        stop = trial.id in self._attempts.doomed or worker.stopping
        if message.awaiting:
            self._out.append(Send(worker.id, Decided(trial.id, trial.attempt, stop)))
        elif stop and not worker.stopping:
            self._out.append(Send(worker.id, Stop(trial.id, trial.attempt)))
        worker.stopping = stop
        self._dispatch()  # a result in a rung may make a promotion due

    def _saved(self, worker: Worker, trial: Trial, message: Checkpointed) -> None:
        if message.url in worker.saved:  # an older one that came again must not take the place of the newest
            self.stale += 1
            return
        worker.saved.add(message.url)
        self._attempts.record(CheckpointSaved(trial.id, trial.attempt, message.step, message.url))
        self._out.append(Send(worker.id, Kept(trial.id, trial.attempt, message.url)))

    def _finished(self, worker: Worker, trial: Trial, event: TrialFinished) -> None:
        message, failure, was_stopping = event.message, worker.failure, worker.stopping
        self._release(worker)
        if message.outcome == "returned":
            self._attempts.conclude(trial, message)
        elif self.ending is not None and not was_stopping and message.outcome != "raised":
            self._attempts.lose(trial, Failure(DRIVER_LOST, "the search was stopped"))
        elif failure is not None:
            self._attempts.lose(trial, Failure(failure.kind, failure.message, message.traceback))
        elif message.outcome == "raised" or (message.outcome == "died" and not was_stopping):
            self._attempts.lose(trial, Failure(message.kind, message.message, message.traceback))
        else:
            self._attempts.stop(trial)
        self._dispatch()

    # -- work ---------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give work to idle workers while there is some; close when there will be none."""
        while self._idle and self.ending is None and (trial := self._next_trial()) is not None:
            index = next(iter(self._idle))
            del self._idle[index]
            self._assign(self.workers[index], trial)
        self._ask_ahead()
        self._close_if_done()

    def _next_trial(self) -> Trial | None:
        if self._attempts.retries:
            return self.study.trials[self._attempts.retries.popleft()]
        if (promotion := self.study.next_promotion()) is not None:
            return promotion
        if (created := self._proposals.take(next(iter(self._idle.values())))) is not None:
            self._attempts.record(created)
            return self.study.trials[-1]
        return None

    def _assign(self, worker: Worker, trial: Trial) -> None:
        grant = self.study.grant(trial)
        attempt = trial.attempt + 1
        discard = self._attempts.states.unneeded(trial.id)
        self._attempts.record(self.study.started(trial, worker.id.index, self._now))
        worker.take(trial.id, self._now)
        self._busy += 1
        saved = trial.checkpoint.url if trial.checkpoint is not None else None
        order = Assign(trial.id, attempt, trial.config, grant.budget, grant.milestones, self.objective, saved, discard)
        self._out.append(Send(worker.id, order))

    def _ask_ahead(self) -> None:
        if self.ending is None and (question := self._proposals.ask(self._now)) is not None:
            self._out.append(question)

    def _suggested(self, event: SuggestionReady) -> None:
        if event.error is not None:
            self._stop_all("error", event.error)
            return
        self._proposals.answer(event, self._now)
        self._dispatch()

    # -- time and ends ------------------------------------------------------------------------

    def _tick(self) -> None:
        # Idle ones first: what one silent worker loses must not go to another that is silent too.
        for worker in sorted(self.workers.values(), key=lambda worker: worker.state is not WorkerState.IDLE):
            if not worker.is_live:
                continue
            if self._now - worker.seen > self._heartbeat_timeout:
                self._lost(worker, f"not heard of for {self._heartbeat_timeout:g} s")
            elif (
                self._trial_timeout is not None
                and worker.trial is not None
                and not worker.stopping
                and self._now - worker.since > self._trial_timeout
            ):
                worker.failure = Failure("timeout", f"took longer than trial_timeout={self._trial_timeout:g} s")
                worker.stopping = True
                trial = self.study.trials[worker.trial]
                self._out.append(Send(worker.id, Stop(trial.id, trial.attempt)))

    def _close_if_done(self) -> None:
        more = self._attempts.retries or self._proposals.has_more
        if self.ending is None and not self._busy and not more and self.study.next_promotion() is None:
            self._stop_all("completed", None)

    def _stop_all(self, reason: str, error: Exception | None) -> None:
        if self.ending is not None:
            return
        self.ending, self.error = reason, error
        for worker in self.workers.values():
            if worker.is_live:
                self._shut_down(worker)
