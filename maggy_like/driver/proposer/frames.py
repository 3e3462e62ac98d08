"""Messages between a driver and the process of its optimizer, pickled: the process is the driver's own child."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from maggy_like.processes.pickles import dumps
from optimizers.core.base import Update


@dataclass(frozen=True, slots=True)
class ProposerLaunch:
    """The driver's first message to the process.

    Attributes:
        path: Module search path, in the order in which custom optimizers find their modules.
        optimizer: The optimizer, pickled.
        history: The history of the study, pickled.
    """

    path: tuple[str, ...]
    optimizer: bytes
    history: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """The driver's question to the process: the ``index``-th answer after ``updates``."""

    index: int
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """The process's message to the driver if the optimizer raised an exception.

    Attributes:
        error: The exception, pickled. Empty if it cannot be pickled.
        summary: Its type and message.
        traceback: Its traceback.
    """

    error: bytes
    summary: str
    traceback: str


def pack(value: object) -> bytes:
    """Pickle a value, with classes and functions of notebooks and scripts by value."""
    return dumps(value)


def unpack(data: bytes) -> Any:
    """Unpickle what :func:`pack` returned. It never comes from the network, since both ends are on one machine."""
    return pickle.loads(data)  # noqa: S301
