"""Retries of what a store refuses: the trial waits meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from maggy_like.protocol.texts import encodable
from maggy_like.storage.faults import is_store_fault, refusal
from maggy_like.worker.child.sender import Sender

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two tries: each pause is twice the one before."""

_LOOK = 0.05


class StoreRetry:
    """Repeats what a store refuses, with growing pauses, until the store serves or the trial must stop.

    The trial's state is in memory meanwhile, so nothing is lost and no attempt is spent. The driver is told of the
    wait, and decides how long the run waits for its store.

    Args:
        store: URL of the store, for people.
        sender: To the agent.
    """

    def __init__(self, store: str, sender: Sender) -> None:
        self._store = store
        self._sender = sender

    def __call__(self, verb: str, act: Callable[[], T], *answers: type[Exception]) -> T:
        """What ``act`` gives once the store serves.

        Args:
            verb: What it does to the store: ``written`` or ``read``.
            act: May be called several times.
            *answers: Errors that are an answer of the store and no refusal.

        Raises:
            TrialStopped: The trial is to stop.
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
        """Sleep, somewhat more or less than ``seconds``: many trials must not come back all at once."""
        until = time.monotonic() + seconds * random.Random().uniform(0.75, 1.25)
        while (left := until - time.monotonic()) > 0:
            if self._sender.stop.is_requested:
                self._sender.stop.tell()
            time.sleep(min(_LOOK, left))
