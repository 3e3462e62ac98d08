"""What the state machine wants done, in order. An ``Append`` must be safe before what follows it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.messages import ToWorker
from optimizers.core.base import Update
from optimizers.core.events import Event


@dataclass(frozen=True, slots=True)
class Append:
    """Write an event to the journal."""

    event: Event


@dataclass(frozen=True, slots=True)
class Keep:
    """Put what a function that is no training returned into the store, before the journal says that it did."""

    returned: Any


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a worker."""

    worker: WorkerId
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Replace:
    """Have the engine put a new incarnation in a lost worker's place."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class AskOptimizer:
    """Have the optimizer propose its ``index``-th configuration, once it knows ``updates``."""

    index: int
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Show:
    """Tell the reader something, about a trial or about the run."""

    text: str
    trial: int | None = None


Command = Append | Keep | Send | Replace | AskOptimizer | Show
