"""The inputs of the state machine, and the commands that it returns.

Every event of a worker carries its index and incarnation, so that a stale message of a lost incarnation changes
nothing. Those that hold an exception are tracked by the garbage collector, because its traceback may hold them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Checkpointed, Finished, Held, Opened, Reported, Silent, ToWorker, Waiting
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import Proposal, Update, Wait
from optimizers.core.events import Event

TrialMessage = Reported | Checkpointed | Waiting | Opened | Held | Silent | Finished
"""Messages of a worker about its attempt."""


class WorkerJoined(msgspec.Struct, frozen=True, gc=False):
    """A worker introduced itself; it cannot take trials yet."""

    worker: WorkerId
    host: str
    accelerators: tuple[str, ...] = ()
    store_unseen: str | None = None  # why it has no access to the run's store; None if it has (see :class:`Hello`)


class WorkerReady(msgspec.Struct, frozen=True, gc=False):
    """A worker can take its first trial."""

    worker: WorkerId


class WorkerSeen(msgspec.Struct, frozen=True, gc=False):
    """A worker is alive."""

    worker: WorkerId


class WorkerBroken(msgspec.Struct, frozen=True, gc=False):
    """A worker can run no trial of any kind."""

    worker: WorkerId
    message: str


class WorkerLost(msgspec.Struct, frozen=True, gc=False):
    """A worker is gone without a goodbye, according to its engine."""

    worker: WorkerId
    reason: str
    with_others: bool = False  # whether others were lost with it, so that the cause is unknown
    with_node: bool = False  # whether its machine was removed, or may have been


class WorkerLeaving(msgspec.Struct, frozen=True, gc=False):
    """A worker's machine is about to be removed, according to its engine."""

    worker: WorkerId
    reason: str


class WorkerGone(msgspec.Struct, frozen=True, gc=False):
    """A worker sent its goodbye."""

    worker: WorkerId


class TrialSaid(msgspec.Struct, frozen=True, gc=False):
    """A worker sent a message about its attempt."""

    worker: WorkerId
    message: TrialMessage


class SuggestionReady(msgspec.Struct, frozen=True):
    """The optimizer answered an :class:`~maggy_like.driver.state_machine.interface.AskOptimizer`."""

    index: int
    answer: Proposal | Wait | None  # the optimizer's checked answer: a proposal, ``WAIT``, or None if it has none left
    error: Exception | None = None  # exception that it raised instead
    more: bool = False  # whether the next proposal of the same request follows, which treats this one as pending


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed."""

    stalled: float = 0.0  # seconds for which the driver stood still, and could receive nothing
    held: float = 0.0  # seconds for which it could decide nothing, because its journal was refused


class StopRequested(msgspec.Struct, frozen=True):
    """End the search now and keep its results."""

    reason: Ending
    error: Exception | None = None  # exception to raise in the caller, if given
    by: str = ""  # source of the stop, for the reader, if it was not the caller


WorkerEvent = WorkerReady | WorkerSeen | WorkerBroken | WorkerGone | TrialSaid
"""Events of a worker that has joined."""

Input = WorkerEvent | WorkerJoined | WorkerLost | WorkerLeaving | SuggestionReady | Tick | StopRequested


class BeforeJournal(msgspec.Struct, frozen=True, gc=False):
    """A command that must have succeeded before the journal records what follows from it."""


class AfterJournal(msgspec.Struct, frozen=True, gc=False):
    """A command that is carried out once the journal has all events of its round."""


class StoreReturned(BeforeJournal, frozen=True, gc=False):
    """Put the returned value of the function of ``run`` into the store."""

    returned: Any


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write an event to the journal."""

    event: Event
    value: float | None = None  # the value of the trial as of an :class:`AttemptEnded`


class Send(AfterJournal, frozen=True, gc=False):
    """Send a message to a worker."""

    worker: WorkerId
    message: ToWorker


class Replace(AfterJournal, frozen=True, gc=False):
    """Let the engine launch a new incarnation of a lost worker."""

    worker: WorkerId


class AskOptimizer(AfterJournal, frozen=True, gc=False):
    """Let the optimizer propose its ``index``-th configuration, once it knows ``updates``."""

    index: int
    updates: tuple[Update, ...]
    trial: int = 0  # number of the trial that will have it
    most: int = 1  # maximum number of proposals, each of which treats those before as pending


class Show(AfterJournal, frozen=True, gc=False):
    """Show a line to the user, about a trial or about the run."""

    text: str
    trial: int | None = None
    is_warning: bool = False  # whether it is about a mistake of the caller


Command = StoreReturned | Append | Send | Replace | AskOptimizer | Show
Commands = list[Command]
