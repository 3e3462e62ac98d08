"""The course of a run: attempts end, others begin, the search ends, and a training may follow."""

from __future__ import annotations

from maggy_like.driver.state_machine.attempts import Attempts
from maggy_like.driver.state_machine.commands import Commands, Send
from maggy_like.driver.state_machine.dispatch import Dispatcher
from maggy_like.driver.state_machine.proposals import Proposals
from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.driver.state_machine.store_outage import StoreOutage
from maggy_like.driver.state_machine.training_phase import TrainingPhase
from maggy_like.driver.state_machine.worker_groups import WorkerGroups
from maggy_like.driver.state_machine.worker_pool import WorkerPool
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup, WorkerState
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Finished, Shutdown
from optimizers.core.study import Study
from optimizers.core.trial import Failure


class Course:
    """Ends attempts and the search, and starts others.

    Args:
        study: State of the study.
        dispatcher: Gives work to idle workers.
        target: Value of the objective at which the search is over.

    Attributes:
        now: Time of the present input, in seconds.
        objective: Name of the optimised metric, once known.
        ending: Why the run ended; None before.
        error: Exception that ``lagom`` must raise, if any.
        stopped_by: Source of a stop from outside; empty if there was none.
        stale: Number of ignored messages of lost incarnations or past attempts.
    """

    def __init__(self, study: Study, dispatcher: Dispatcher, target: float | None, objective: str | None) -> None:
        self.now = 0.0
        self.objective = objective
        self.ending: Ending | None = None
        self.error: Exception | None = None
        self.stopped_by = ""
        self.stale = 0
        self.study = study
        self._dispatcher = dispatcher
        self._pool: WorkerPool = dispatcher.pool
        self._groups: WorkerGroups = dispatcher.groups
        self._attempts: Attempts = dispatcher.attempts
        self._proposals: Proposals = dispatcher.proposals
        self._outage: StoreOutage = dispatcher.outage
        self._training_phase: TrainingPhase = dispatcher.training_phase
        self._target = target

    @property
    def is_training(self) -> bool:
        """Whether the search is over, and the training not."""
        return self._training_phase.search_ended is not None and self.ending is None

    def ended(self, group: WorkerGroup, worker: Worker, end: Finished | Failure) -> Commands:
        """Record the end of a rank; the attempt is over when all have ended."""
        commands = self._groups.ended(group, worker, end)
        if not group.has_ended:
            return commands
        self._groups.release(group)
        self._pool.release(group, self.now, is_over=self.ending is not None)
        for member in group.members:
            if member.leaving and member.state is WorkerState.IDLE:
                commands += self.shut_down(member)
        trial = self.study.trials[group.trial]
        commands += self._attempts.end(trial, group, self.now)
        commands += self._outage.ended(trial, self.now)
        self._attempts.sort_retries(training=self.is_training)
        error = self._attempts.unclear or self._attempts.alike.error()
        if error is not None and not self.is_training:
            commands += self.end_search(Ending.ERROR, error)
        commands += self.dispatch()
        return commands

    def dispatch(self) -> Commands:
        """Give work to idle workers while there is some; end the run when there will be none."""
        commands = self.end_at_target()
        if self.ending is None:
            commands += self._dispatcher.dispatch(self.objective, self.now)
        commands += self.ask_ahead()
        commands += self.close_if_done()
        return commands

    def ask_ahead(self) -> Commands:
        """Let the optimizer propose in advance."""
        searching = self.ending is None and not self.is_training
        question = self._proposals.ask(self.now) if searching else None
        return [] if question is None else [question]

    def end_at_target(self) -> Commands:
        """End the search once a trial has reached the target."""
        if self._target is None or self._training_phase.search_ended is not None:
            return []
        best = self.study.best
        if best is None or self.study.loss(best.value) > self.study.loss(self._target):
            return []
        return self.end_search(Ending.TARGET, None)

    def close_if_done(self) -> Commands:
        """End the run, or the search, once nothing of it is left."""
        if self.ending is not None or self._groups or self._attempts.retries:
            return []
        if self._training_phase.search_ended is not None:
            return self._stop_all(self._training_phase.search_ended, None)
        if self._proposals.has_more or self.study.next_promotion() is not None:
            return []  # for a worker that is to come, where none is free
        if self._dispatcher.closing_promotion() is not None:
            return []
        error = self._attempts.alike.error(self.study.size)
        return self.end_search(Ending.COMPLETED if error is None else Ending.ERROR, error)

    def end_search(self, reason: Ending, error: Exception | None) -> Commands:
        """Create no further trials and stop the running ones. A training follows, if one is planned."""
        if self.ending is not None or (self._training_phase.search_ended is not None and reason is Ending.TIMEOUT):
            return []
        if self._training_phase.search_ended is not None or not self._training_phase.follows(reason):
            return self._stop_all(reason, error)
        commands: Commands = []
        for group in self._groups:
            commands += self._groups.stop(group, Stopping.CUT, cause=f"the search ended: {reason}")
        self._attempts.sort_retries(training=self.is_training)
        commands += self.dispatch()
        return commands

    def _stop_all(self, reason: Ending, error: Exception | None) -> Commands:
        """End the run: every worker must leave, and ends its attempt."""
        self.ending, self.error = reason, error
        who = f" ({self.stopped_by})" if self.stopped_by else ""
        for group in self._groups:
            group.stop(Stopping.CUT, cause=f"the run ended: {reason}{who}")
        return [command for worker in self._pool for command in self.shut_down(worker)]

    def shut_down(self, worker: Worker) -> Commands:
        """Let a worker leave once its attempt has ended."""
        busy = worker.state is WorkerState.BUSY
        self._pool.retire(worker, WorkerState.BUSY if busy else WorkerState.DRAINING)
        return [Send(worker.id, Shutdown())]
