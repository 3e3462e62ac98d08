"""Messages between a driver and the process of its optimizer, pickled: the process is the driver's own child."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from maggy_like.processes.pickles import dumps
from optimizers.core.base import Update


@dataclass(frozen=True, slots=True)
class Launch:
    """Driver to process, first of all.

    Attributes:
        path: Where to look for modules: ``PYTHONPATH`` cannot hold all of it.
        optimizer: The optimizer, pickled.
        history: All that it may know so far, pickled.
    """

    path: tuple[str, ...]
    optimizer: bytes
    history: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """Driver to process: asks for the ``index``-th answer, after ``updates``."""

    index: int
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """Process to driver, in place of an answer.

    Attributes:
        error: The exception, pickled; empty if it cannot be.
        summary: Its type and message.
        traceback: Where it was raised.
    """

    error: bytes
    summary: str
    traceback: str


def pack(value: object) -> bytes:
    """As bytes, classes and functions of notebooks and scripts by value."""
    return dumps(value)


def unpack(data: bytes) -> Any:
    """What :func:`pack` was given. Nothing comes from the network: both ends are one program on one machine."""
    return pickle.loads(data)  # noqa: S301
