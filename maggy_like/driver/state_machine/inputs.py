"""The inputs of the state machine.

Every event of a worker carries its index and incarnation, so that the late word of a lost incarnation
changes nothing. Those that hold an exception are seen by the garbage collector, since its traceback may hold them.
"""

from __future__ import annotations

import msgspec

from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Checkpointed, Finished, Held, Opened, Reported, Waiting
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import Proposal, Wait

TrialMessage = Reported | Checkpointed | Waiting | Opened | Held | Finished
"""What a worker says of the attempt that it runs."""


class WorkerJoined(msgspec.Struct, frozen=True, gc=False):
    """A worker introduced itself; it cannot take trials yet.

    Attributes:
        store_unseen: Why it does not see the run's store (see :class:`maggy_like.protocol.messages.Hello`); None if it
            does.
    """

    worker: WorkerId
    host: str
    accelerators: tuple[str, ...] = ()
    store_unseen: str | None = None


class WorkerReady(msgspec.Struct, frozen=True, gc=False):
    """A worker can take its first trial."""

    worker: WorkerId


class WorkerSeen(msgspec.Struct, frozen=True, gc=False):
    """A worker is alive."""

    worker: WorkerId


class WorkerBroken(msgspec.Struct, frozen=True, gc=False):
    """A worker can run no trial, whichever it is."""

    worker: WorkerId
    message: str


class WorkerLost(msgspec.Struct, frozen=True, gc=False):
    """A worker is gone without a goodbye, as its engine says.

    Attributes:
        with_gang: Whether others fell with it, so that nobody knows whose fault it was.
        with_node: Whether its machine was taken away, or nobody knows that it was not.
    """

    worker: WorkerId
    reason: str
    with_gang: bool = False
    with_node: bool = False


class WorkerLeaving(msgspec.Struct, frozen=True, gc=False):
    """A worker's machine is about to be taken away, as its engine says."""

    worker: WorkerId
    reason: str


class WorkerGone(msgspec.Struct, frozen=True, gc=False):
    """A worker said goodbye."""

    worker: WorkerId


class TrialSaid(msgspec.Struct, frozen=True, gc=False):
    """A worker sent a message about the attempt that it runs."""

    worker: WorkerId
    message: TrialMessage


class SuggestionReady(msgspec.Struct, frozen=True):
    """The optimizer answered an :class:`~maggy_like.driver.state_machine.commands.AskOptimizer`.

    Attributes:
        answer: The optimizer's, checked: a proposal, ``WAIT``, or None when it has none left.
        error: What it raised instead.
        more: Whether the next proposal of the same question follows, which knows this one as pending.
    """

    index: int
    answer: Proposal | Wait | None
    error: Exception | None = None
    more: bool = False


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed.

    Attributes:
        stalled: Seconds for which the driver stood still, and could hear nobody.
        held: Seconds for which it could decide nothing, since its journal was refused.
    """

    stalled: float = 0.0
    held: float = 0.0


class StopRequested(msgspec.Struct, frozen=True):
    """End the search now and keep what there is.

    Attributes:
        error: Raise this in the caller, if given.
        by: Who stopped it, for the reader, where that was not the caller.
    """

    reason: Ending
    error: Exception | None = None
    by: str = ""


WorkerEvent = WorkerReady | WorkerSeen | WorkerBroken | WorkerGone | TrialSaid
"""What a worker that has joined says."""

Input = WorkerEvent | WorkerJoined | WorkerLost | WorkerLeaving | SuggestionReady | Tick | StopRequested
