"""Processes the messages of workers about their attempts."""

from __future__ import annotations

from maggy_like.driver.state_machine.commands import Commands, Send
from maggy_like.driver.state_machine.course import Course
from maggy_like.driver.state_machine.decommissioning import Decommissioning
from maggy_like.driver.state_machine.dispatch import Dispatcher
from maggy_like.driver.state_machine.inputs import TrialMessage
from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Checkpointed, Finished, Held, Kept, Opened, Reported, Waiting
from optimizers.core.events import CheckpointSaved


class TrialMessages:
    """Processes measurements, saved states and ends of running attempts."""

    def __init__(self, course: Course, dispatcher: Dispatcher, decommissioning: Decommissioning) -> None:
        self._course = course
        self._groups = dispatcher.groups
        self._attempts = dispatcher.attempts
        self._outage = dispatcher.outage
        self._decommissioning = decommissioning

    def take(self, group: WorkerGroup, worker: Worker, message: TrialMessage) -> Commands:
        """Handle a message of one of a group's workers about its attempt."""
        match message:
            case Reported():
                return self._reported(group, message)
            case Checkpointed():
                return self._saved(group, message)
            case Waiting():
                return [*self._outage.heard(group, worker, message, self._course.now)]
            case Opened():
                return self._groups.opened(group, worker, message)
            case Held():
                return self._groups.held(group, worker, message)
            case Finished():
                return self._course.ended(group, worker, message)

    def _reported(self, group: WorkerGroup, message: Reported) -> Commands:
        trial = self._course.study.trials[group.trial]
        if self._course.objective is None:
            self._course.objective = message.objective
        commands = self._attempts.measure(trial, message)
        if self._attempts.unclear is not None:
            return [*commands, *self._course.end_search(Ending.ERROR, self._attempts.unclear)]
        if message.awaiting:
            commands += self._groups.decide(group, stop=trial.stop_due)
        elif trial.stop_due:
            commands += self._groups.stop(group, Stopping.RULE)
        commands += self._course.dispatch()  # a result in a rung may make a promotion due
        return commands

    def _saved(self, group: WorkerGroup, message: Checkpointed) -> Commands:
        if message.name in group.saved:  # a repeated older one must not replace the newest
            self._course.stale += 1
            return []
        group.saved.add(message.name)
        commands: Commands = [*self._outage.served(group.trial, self._course.now)]
        commands += self._attempts.record(CheckpointSaved(group.trial, group.attempt, message.step, message.name))
        discard = self._attempts.states.superseded(group.trial)
        commands.append(Send(group.members[0].id, Kept(group.trial, group.attempt, discard)))
        commands += self._decommissioning.saved(group)
        return commands
