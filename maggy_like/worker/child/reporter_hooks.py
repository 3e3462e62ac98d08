"""The other side of a reporter, for the runtime and for the callbacks of libraries; users see only the reporter."""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

from maggy_like.protocol.messages import Assign
from maggy_like.protocol.values import text_of
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child.reporter import OnPause, Reporter
from maggy_like.worker.child.sender import Sender


def reporter_for(assign: Assign, store: CheckpointStore, sender: Sender, on_pause: OnPause | None = None) -> Reporter:
    """Create the reporter of an attempt in a child process.

    Args:
        assign: Assignment.
        store: Store for checkpoints.
        sender: To the agent.
        on_pause: Ends the attempt while the function waits. Returns the next attempt, or None if it is not to run in
            this process.
    """
    reporter = Reporter(max(assign.budget, assign.max_budget))
    reporter.trial = assign.trial
    reporter.config = assign.config
    reporter._directory = os.fsdecode(assign.directory)
    reporter._working_directory = os.fsdecode(assign.working_directory)
    reporter.rank = assign.rank_info.rank if assign.rank_info is not None else 0
    reporter.world_size = assign.rank_info.world_size if assign.rank_info is not None else 1
    reporter._is_search = assign.is_search
    reporter._is_training = assign.max_budget == 0
    reporter._on_pause = on_pause
    reporter._begin(assign, store, sender)
    return reporter


class ReporterHooks:
    """The state of a training function, and the steps around its call."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    # -- the training function --------------------------------------------------------------------

    @property
    def objective(self) -> str | None:
        """The name of the optimized metric. None while it is not known."""
        return self._reporter._objective

    @property
    def is_under_way(self) -> bool:
        """Whether this trial has made a report, or has restored a checkpoint."""
        return self._reporter._step is not None or self._reporter._restored

    @property
    def was_silent(self) -> bool:
        """Whether the function could have been paused in a report, but made none."""
        return self._reporter._pauses and not self._reporter._was_grant_read and not self.is_under_way

    @property
    def cut_at(self) -> int | None:
        """The step of the report that ended the function because it was past the budget. None if there was none."""
        return self._reporter._cut_at

    @property
    def is_paused(self) -> bool:
        """Whether a report has ended the function because the trial is paused."""
        return self._reporter._is_paused

    @property
    def is_stopped(self) -> bool:
        """Whether a report has asked the function to stop, even if the function caught that."""
        sender = self._reporter._sender
        return sender is not None and sender.stop.is_told

    @property
    def has_ended(self) -> bool:
        """Whether a report has ended the function, even if the function caught that."""
        return self.is_stopped or self.is_paused or self.cut_at is not None

    def advice_on(self, error: BaseException) -> str:
        """Return text to append to the message of an error, if the function may have used a missing checkpoint."""
        is_of_none = isinstance(error, TypeError) and "NoneType" in text_of(error)
        if is_of_none and self._reporter._restored_nothing and not self.is_under_way:
            return "; restore() returned None, since the trial had saved no state; begin at the first step then"
        return ""

    # -- checkpoints and files --------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until all checkpoints are written, when the function has returned."""
        self._reporter._saves.settle()

    def keep(self, returned: Any) -> None:
        """Save the returned object, if it is not the value of a training function."""
        self._reporter._saves.keep(returned)

    def finish(self) -> None:
        """Announce the newest checkpoint to the driver, if necessary."""
        self._reporter._saves.finish(self._reporter._step or 0)

    def tidy(self) -> None:
        """Remove checkpoints that are no longer needed."""
        self._reporter._saves.tidy()

    # -- the callbacks of libraries ---------------------------------------------------------------

    def pauses_at(self, step: int) -> bool:
        """Return whether the trial is paused by the report of a step."""
        return self._reporter._pauses and step >= self._reporter._limit

    @property
    def restored_trial(self) -> int | None:
        """The trial that saved the restored checkpoint: this one, or with PBT another."""
        return self._reporter._saves.newest_trial

    @property
    def parent(self) -> int | None:
        """The trial that saved the restored checkpoint with another configuration (PBT); None if there is none.

        A training after a search may continue that of an earlier driver, which has the same configuration.
        """
        trial = self.restored_trial
        return None if self._reporter._is_training or trial == self._reporter.trial else trial

    def start_over(self, remedy: str) -> None:
        """Log once that the function trains from the beginning despite a checkpoint, and how to continue from it."""
        self._reporter._saves.tell_unused(remedy)

    def owns(self, path: str | PathLike[str]) -> bool:
        """Return whether a path is in one of the trial's directories."""
        reporter = self._reporter
        if reporter._sender is None:
            return True  # there is no other trial
        place = os.path.realpath(path)
        own = (
            os.path.realpath(directory) for directory in (reporter._directory, reporter._working_directory) if directory
        )
        return any(place.startswith(f"{directory}{os.sep}") for directory in own)
