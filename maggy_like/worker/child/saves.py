"""The states that one attempt saves: written, retried, announced once a report measures them, removed."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any, Protocol, TypeVar

from maggy_like.protocol.messages import Beat, Checkpointed, Noted
from maggy_like.protocol.state_names import SHARDED, parse_name
from maggy_like.protocol.values import ReportError, encodable
from maggy_like.storage.checkpoints import CheckpointStore, StateLostError
from maggy_like.storage.file_systems import is_store_fault, refusal
from maggy_like.worker.child.sender import Sender

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two tries: each pause is twice the one before."""

_LOOK = 0.05


class StoreRetry:
    """Repeats a refused call of the store, with growing pauses, until it succeeds or the trial must stop.

    The trial keeps its state in memory meanwhile, so nothing is lost and no attempt is spent. The driver is informed
    of the wait, and decides how long the run waits for its store.
    """

    def __init__(self, store: str, sender: Sender) -> None:
        self._store = store  # its URL, for messages
        self._sender = sender

    def __call__(self, verb: str, act: Callable[[], T], *answers: type[Exception]) -> T:
        """Return the result of ``act`` once the store serves; raise TrialStopped if the trial is to stop.

        ``act`` may be called several times. ``verb`` is its action on the store: ``written`` or ``read``. Errors in
        ``answers`` are results of the store, not refusals, and are raised.
        """
        pause, wait = FIRST_PAUSE, self._sender.store
        with wait.calling():
            while True:
                try:
                    return act()
                except Exception as error:
                    if isinstance(error, answers) or not is_store_fault(error):
                        raise
                    reason = refusal(self._store, verb, error)
                wait.refused(encodable(reason))
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                wait.call_again()

    def _pause(self, seconds: float) -> None:
        """Sleep for about ``seconds``, with jitter, because many trials must not return at the same moment."""
        until = time.monotonic() + seconds * random.Random().uniform(0.75, 1.25)
        while (left := until - time.monotonic()) > 0:
            if self._sender.stop.is_requested:
                self._sender.stop.tell()
            time.sleep(min(_LOOK, left))


ANSWER_PATIENCE = 0.5
"""Seconds that a finished trial waits for the driver to confirm which of its states may be removed."""


LATE = (
    "saves each state after the report of its step, so it counts for the next step, and load_best() returns the state "
    "before the best one; call checkpoint(state) before report(), or checkpoint(state, step=step) after it"
)

UNUSED = "trains from the beginning, although it has a checkpoint; to continue from there, {}"

MAX_NOTE = 2000
"""Characters of a message about a lost state."""


class Saving(Protocol):
    """A state that is being written in the background."""

    def is_written(self) -> bool:
        """Whether it is written completely."""

    def wait(self) -> None:
        """Wait until it is written, and raise the error if it failed."""


class Saves:
    """Saves and restores states for one rank. Rank 0 writes a plain state; all ranks write a sharded one.

    Until a state is written, the one saved before it counts and is kept; the driver never receives a state that
    failed. If a sharded save fails on any rank, every rank raises the error in its next call that waits for the save:
    ``save``, ``restore`` or the end. A report does not raise it: the ranks learn of the end of a save at different
    times, and if only one of them continued, they would wait in different collectives.
    """

    def __init__(
        self,
        store: CheckpointStore,
        checkpoint: str | None,
        sender: Sender | None,
        trial: int,
        attempt: int,
        older: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._newest = self._given = checkpoint  # name of the state to continue from
        # Names of the states that were saved before ``checkpoint``, newest first.
        self._older: list[str | None] = [*older]
        self._sender = sender  # None for a function that runs without a driver
        self._trial = trial
        self._attempt = attempt
        self._is_main = sender is None or sender.is_main
        self._unannounced: str | None = None
        self._step: int | None = None  # the first that was reported after it was saved
        self._saving: Saving | None = None
        self._unanswered = 0  # announced states that the driver may not have in its journal yet
        self._before: tuple[str | None, str | None] = None, None  # newest and unannounced, should that fail
        self._reports = 0  # since the last save
        self._late = 0  # saves, if each followed one report; else -1

    def save(self, state: Any) -> None:
        """Save a state; a sharded one is still being written when this returns."""
        self.settle()
        if self._unannounced is not None and self._step is not None:
            self._announce(self._step)
        self._late = self._late + 1 if self._late >= 0 and self._reports == 1 else -1
        self._reports = 0
        name, saving = self._write(state)
        before = self._newest, self._unannounced
        self._newest = self._unannounced = name
        self._step = None
        if saving is None:
            self._remove_later(before[1])
        else:
            self._saving, self._before = saving, before
        if self._sender is not None:
            self._sender.send(Beat())  # saving shows that the trial makes progress
            if self._saving is None:
                self._tidy(self._sender)

    @property
    def newest_trial(self) -> int | None:
        """The trial that has saved the newest state; None if there is none."""
        return None if self._newest is None else parse_name(self._newest).trial

    def restore(self, into: Any) -> Any:
        """Return the newest intact state, or None; a sharded one is read into ``into``."""
        if self._newest is None:
            return None
        self.settle()
        lost: StateLostError | None = None
        state = None
        while (name := self._newest) is not None:
            try:
                state = self._load(name, into)
                break
            except StateLostError as error:
                lost = lost or error
                self._fall_back(name)
        if lost is not None:
            self._tell_lost(lost)
        return state

    @property
    def was_given(self) -> bool:
        """Whether the attempt began with a checkpoint."""
        return self._given is not None

    def tell_unused(self, remedy: str) -> None:
        """Note that the attempt trains from the beginning, although it has a checkpoint."""
        if self._is_main and self._sender is not None:
            self._sender.send(Noted("restart", UNUSED.format(remedy), self._trial))

    def _fall_back(self, lost: str) -> None:
        """Replace a lost state by the one saved before it."""
        self._older = [name for name in (self._given, *self._older) if name not in (None, lost)]
        self._newest = self._given = self._older.pop(0) if self._older else None
        if self._unannounced == lost:
            self._unannounced = None

    def _tell_lost(self, lost: StateLostError) -> None:
        if not self._is_main or self._sender is None:
            return
        if self._newest is None:
            then = "no older one is left, so the trial starts from the beginning"
        else:
            then = f"the trial continues from an older one, {self._store.url_of(self._newest)}"
        self._sender.send(Noted("states", encodable(f"the checkpoint {lost}; {then}")[:MAX_NOTE], self._trial))

    def _load(self, name: str, into: Any) -> Any:
        if not name.endswith(SHARDED):
            is_rank_0_writing = not self._is_main and name != self._given
            return self._store.await_state(name) if is_rank_0_writing else self._store.load(name)
        if into is None:
            raise ReportError(
                "into must be a state of the present sharding, got None for a sharded state; use restore(into=STATE)"
            )
        from maggy_like.distributed import sharded

        with self._calling():
            return sharded.load(self._store.url_of(name), into)

    def reported(self, step: int) -> bool:
        """Record that a report was made, and announce the state before it once it is written.

        Return whether a state belongs to this step.
        """
        self._reports += 1
        is_saved = self._unannounced is not None and self._step is None
        if self._unannounced is not None:
            self._step = step if self._step is None else self._step
            if self._saving is None or self._saving.is_written():
                self.settle()
                self._announce(self._step)
        return is_saved

    def drop_unreported(self) -> None:
        """Remove a state whose step is not reported, because the attempt ends before that."""
        if self._unannounced is not None and self._step is None:
            self.settle()
            self._remove_later(self._unannounced)
            self._unannounced = None

    def settle(self) -> None:
        """Wait until the newest state is written; if that fails, the one before is the newest again."""
        if self._saving is None:
            return
        newest, unannounced = self._before
        try:
            with self._calling():
                self._saving.wait()
        except Exception:
            if self._is_main and self._newest is not None:
                self._store.remove(self._newest)
            self._newest, self._unannounced, self._saving = newest, unannounced, None
            raise
        self._saving = None
        self._remove_later(unannounced)

    def finish(self, step: int) -> None:
        """Announce the newest state as the function returns, after ``step``."""
        if self._late > 1 and not self._reports and self._is_main and self._sender is not None:
            self._sender.send(Noted("late", LATE, self._trial))
        if self._unannounced is not None:
            self.settle()
            self._announce(step if self._step is None else self._step)

    def keep(self, returned: Any) -> None:
        """Save a returned object that is not the value of a training run."""
        self._store.keep(returned)

    def tidy(self) -> None:
        """Remove states that are no longer needed, without waiting long for the driver."""
        if self._sender is not None:
            self._tidy(self._sender, ANSWER_PATIENCE)

    def _write(self, state: Any) -> tuple[str, Saving | None]:
        """Write a state, or begin to; return its name and the save in progress."""
        if self._store.has_place and _is_sharded(state):
            from maggy_like.distributed import sharded

            name = self._store.next_name(self._attempt, SHARDED)
            with self._calling():
                return name, sharded.save(self._store.url_of(name), state)
        name = self._store.next_name(self._attempt)
        if self._is_main:
            self._store.save(name, state)
        return name, None

    def _remove_later(self, name: str | None) -> None:
        """Remove a state whose step was never measured once a newer one is written."""
        if name is not None and self._is_main:
            self._store.remove_later(name)

    def _announce(self, step: int) -> None:
        if self._unannounced is not None and self._sender is not None and self._is_main:
            self._sender.flush()
            self._sender.send(Checkpointed(self._trial, self._attempt, step, self._unannounced))
            self._unanswered += 1
            self._tidy(self._sender)
        self._unannounced = None

    def _tidy(self, sender: Sender, patience: float = 0.0) -> None:
        """Remove what is no longer needed once the newest state is written.

        Wait for the driver's answers for at most ``patience`` seconds.
        """
        deadline = time.monotonic() + patience
        with contextlib.suppress(Empty):
            while self._unanswered:
                for name in sender.kept.get(timeout=max(0.0, deadline - time.monotonic())):
                    self._store.remove_later(name)
                self._unanswered -= 1
        if self._is_main:
            with self._calling():
                self._store.tidy()

    def _calling(self) -> contextlib.AbstractContextManager[None]:
        """Mark that a call of the store is in progress, which may take long."""
        return contextlib.nullcontext() if self._sender is None else self._sender.store.calling()


def _is_sharded(state: Any) -> bool:
    if "torch.distributed.tensor" not in sys.modules:  # no sharded tensor can be there
        return False
    from maggy_like.distributed import sharded

    return bool(sharded.is_sharded(state))
