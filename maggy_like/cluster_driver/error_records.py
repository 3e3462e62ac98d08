"""Errors that travel as text: from the driver's task to whoever follows the run."""

from __future__ import annotations

import socket

from maggy_like import errors
from maggy_like.errors import EngineError, MaggyError
from maggy_like.storage.control_files import ErrorRecord


def to_record(error: BaseException) -> ErrorRecord:
    """An error as text."""
    kind = type(error).__name__
    message = str(error) if isinstance(error, MaggyError) else f"{kind}: {error}"
    return ErrorRecord(kind, message, tuple(getattr(error, "__notes__", ())))


def from_record(record: ErrorRecord) -> MaggyError:
    """The error that a text describes: of the same class, if it is one of ours."""
    known = getattr(errors, record.kind, None) if record.kind in errors.__all__ else None
    error = (known or EngineError)(record.message)
    for note in record.notes:
        error.add_note(note)
    assert isinstance(error, MaggyError)
    return error


def folder_not_seen(who: str, journal: str) -> str:
    """The message of a task that does not find the run where the client has begun it."""
    return (
        f"{who} on host {socket.gethostname()!r} does not see the run's folder {journal}; pass directory=URL of a "
        "place that this process and all executors share"
    )
