"""The commands of the state machine, whose classes determine whether they run before or after the journal's append.

The commands of one round of inputs are carried out in three stages: each :class:`BeforeJournal`; every
:class:`Append`, in one go; each :class:`AfterJournal`, in order. So neither a worker nor the user learns of an event
that a crash of the driver could undo.
"""

from __future__ import annotations

from typing import Any

import msgspec

from maggy_like.protocol.messages import ToWorker
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import Update
from optimizers.core.events import Event


class BeforeJournal(msgspec.Struct, frozen=True, gc=False):
    """A command that must have succeeded before the journal records what follows from it."""


class AfterJournal(msgspec.Struct, frozen=True, gc=False):
    """A command that is carried out once the journal has all events of its round."""


class StoreReturned(BeforeJournal, frozen=True, gc=False):
    """Put the returned value of the function of ``run`` into the store."""

    returned: Any


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write an event to the journal.

    Attributes:
        value: The value of the trial as of an :class:`AttemptEnded`.
    """

    event: Event
    value: float | None = None


class Send(AfterJournal, frozen=True, gc=False):
    """Send a message to a worker."""

    worker: WorkerId
    message: ToWorker


class Replace(AfterJournal, frozen=True, gc=False):
    """Let the engine launch a new incarnation of a lost worker."""

    worker: WorkerId


class AskOptimizer(AfterJournal, frozen=True, gc=False):
    """Let the optimizer propose its ``index``-th configuration, once it knows ``updates``.

    Attributes:
        trial: Number of the trial that will have it.
        most: Maximum number of proposals, each of which treats those before as pending.
    """

    index: int
    updates: tuple[Update, ...]
    trial: int = 0
    most: int = 1


class Show(AfterJournal, frozen=True, gc=False):
    """Show a line to the user, about a trial or about the run."""

    text: str
    trial: int | None = None


Command = StoreReturned | Append | Send | Replace | AskOptimizer | Show
Commands = list[Command]
