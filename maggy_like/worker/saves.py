"""The states that one attempt saves: written, told of once they are measured, removed when they are of no use."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from maggy_like.messages import Beat, Checkpointed
from maggy_like.worker.checkpoints import SHARDED, CheckpointStore, await_state
from maggy_like.worker.metrics import ReportError
from maggy_like.worker.sender import Sender


class Saving(Protocol):
    """A state that is being written in the background."""

    def done(self) -> bool:
        """Whether it is written whole."""

    def wait(self) -> None:
        """Wait until it is; raises what failed."""


class Saves:
    """Saves and restores for one rank. Rank 0 writes a plain state; a sharded one is written by all.

    Args:
        store: Where states go.
        checkpoint: URL of the state to go on from.
        sender: To the agent; None for a function that runs alone.
        trial: Number of the trial.
        attempt: Number of its run.
    """

    def __init__(
        self, store: CheckpointStore, checkpoint: str | None, sender: Sender | None, trial: int, attempt: int
    ) -> None:
        self._store = store
        self._newest = self._given = checkpoint
        self._sender = sender
        self._trial = trial
        self._attempt = attempt
        self._is_main = sender is None or sender.is_main
        self._untold: str | None = None
        self._step: int | None = None  # the first that was reported after it was saved
        self._saving: Saving | None = None

    def save(self, state: Any) -> None:
        """Save a state; a sharded one goes on being written when this returns."""
        self._replace_untold()
        if self._store.has_place and _is_sharded(state):
            from maggy_like.worker.gang import sharded

            self._newest = self._store.next_url(self._trial, self._attempt, SHARDED)
            self._saving = sharded.save(self._newest, state)
        else:
            self._newest = self._store.next_url(self._trial, self._attempt)
            if self._is_main:
                self._store.save(self._newest, state)
        self._untold, self._step = self._newest, None
        if self._sender is not None:
            self._sender.send(Beat())  # saving shows that the trial goes on
            if self._saving is None:
                self._tidy(self._sender)

    def restore(self, into: Any) -> Any:
        """The newest state; a sharded one is read into ``into``."""
        if self._newest is None:
            return None
        self.settle()
        if not self._newest.endswith(SHARDED):
            is_rank_0_writing = not self._is_main and self._newest != self._given
            return await_state(self._newest) if is_rank_0_writing else self._store.load(self._newest)
        if into is None:
            raise ReportError(
                "the saved state is sharded; pass restore(into=STATE) with a state of the present sharding"
            )
        from maggy_like.worker.gang import sharded

        return sharded.load(self._newest, into)

    def reported(self, step: int) -> None:
        """Take in that a report was made; tell of the state before it once it is written."""
        if self._untold is not None:
            self._step = step if self._step is None else self._step
            if self._saving is None or self._saving.done():
                self._tell(self._step)

    def settle(self) -> None:
        """Wait until the newest state is written."""
        if self._saving is not None:
            self._saving.wait()
            self._saving = None

    def finish(self, step: int) -> None:
        """Tell of the newest state as the function returns, after ``step``."""
        if self._untold is not None:
            self.settle()
            self._tell(step if self._step is None else self._step)

    def _replace_untold(self) -> None:
        """A newer state comes: tell of the one before, or remove it if its step was never measured."""
        if self._untold is None:
            return
        self.settle()
        if self._step is not None:
            self._tell(self._step)
        elif self._is_main:
            self._store.remove_later(self._untold)

    def _tell(self, step: int) -> None:
        url, self._untold, self._saving = self._untold, None, None
        if url is not None and self._sender is not None and self._is_main:
            self._sender.flush()
            self._sender.send(Checkpointed(self._trial, self._attempt, step, url))
            self._tidy(self._sender)

    def _tidy(self, sender: Sender) -> None:
        """Remove what is of no use any more, now that the newest state is written."""
        while not sender.discard.empty():
            self._store.remove_later(sender.discard.get())
        if self._is_main:
            self._store.tidy()


def _is_sharded(state: Any) -> bool:
    if "torch.distributed.tensor" not in sys.modules:  # no sharded tensor can be there
        return False
    from maggy_like.worker.gang import sharded

    return bool(sharded.is_sharded(state))
