"""The child of an inline worker: a thread of the caller's process, which calls the function on request."""

from __future__ import annotations

import sys

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.protocol.messages import Assign
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.child.process import make_runner
from maggy_like.worker.child.sender import Sender


class InlineChild:
    """Run one trial per call. No wait is unlimited, because the caller has other work in between.

    Args:
        channel: To the agent, which is in another thread.
        task: Description of the run.

    Attributes:
        refuses: Whether the function is no longer called, because the run ends.
    """

    def __init__(self, channel: Channel, task: WorkerTask) -> None:
        self.refuses = False
        self._channel = channel
        self._cut: tuple[Assign, Sender] | None = None  # ends as soon as it is known to be stopped
        try:
            self._runner = make_runner(channel, task, lambda _: sys.stdout.flush(), lambda: None)
        except Disconnected:
            self._runner = None

    @property
    def is_over(self) -> bool:
        """Whether no further trial will come."""
        return self._runner is None or self._runner.service.is_over

    @property
    def is_in_function(self) -> bool:
        """Whether the function is running."""
        return self._runner is not None and self._runner.is_in_function

    def await_trial(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a trial or another message."""
        if self._runner is not None:
            self._runner.service.await_assignment(seconds)

    def run_trial(self) -> None:
        """Run the trial that is assigned, if there is one.

        Raises:
            KeyboardInterrupt: In the function. It is not called again after that.
        """
        try:
            self._run_trial()
        except Disconnected:
            self._runner = None

    def _run_trial(self) -> None:
        if self._runner is None:
            return
        if self._cut is None and (assigned := self._runner.service.take_assignment()) is not None:
            if not self.refuses:
                try:
                    self._runner.run(*assigned)
                except KeyboardInterrupt:
                    self.refuses, self._cut = True, assigned
                    raise
                return
            self._cut = assigned
        # Not before: the driver would take it for an end that the function has come to by itself.
        if self._cut is not None and self._cut[1].stop.is_requested:
            self._runner.cut(*self._cut)
            self._cut = None

    def close(self) -> None:
        """Close the connection to the agent."""
        self._channel.close()
