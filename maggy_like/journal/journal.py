"""Append and replay of a run's events, as JSON lines in a local file.

The first line is the header, every other one an event of :mod:`optimizers.events`. A record is
handed to the operating system before the command that depends on it is sent, so it survives the
driver's death (not the machine's: nothing is synced to the disk for each record).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from maggy_like.errors import JournalError
from maggy_like.journal.earlier import EarlierResult
from optimizers.events import Event, from_json, to_json

FORMAT_VERSION = 1


class RunHeader(msgspec.Struct, frozen=True, tag="run"):
    """What must be the same when a run is resumed, and what readers want to know.

    Attributes:
        version: Of this format.
        name: Of the run.
        created: Unix time.
        space: The search space as JSON.
        optimizer: The optimizer's name and options, as text.
        direction: ``max`` or ``min``.
        metric: The objective's name, if the caller gave one.
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        constrained: Whether the space has constraints, which are functions and not in its JSON.
        earlier: What the run knew of earlier ones when it began, so that a resume needs none of them.
    """

    version: int
    name: str
    created: float
    space: dict[str, Any]
    optimizer: str
    direction: str
    metric: str | None
    seed: int
    max_budget: int
    constrained: bool = False
    earlier: list[list[EarlierResult]] = []

    @property
    def directions(self) -> list[str]:
        """The direction of each objective."""
        return self.direction.split(", ")

    @property
    def metrics(self) -> list[str]:
        """The objectives' names; empty if the only one's was not given."""
        return self.metric.split(", ") if self.metric else []


class Journal:
    """A journal that is open for appending; only one process at a time may hold it.

    Args:
        path: The file; made if it is not there.

    Raises:
        JournalError: Another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise JournalError(f"the run in {path.parent} is in use by another process") from None

    def begin(self, header: RunHeader) -> None:
        """Write the header of a new journal."""
        self._write(msgspec.json.encode(header) + b"\n")

    def repair(self, size: int) -> None:
        """Cut off what lies past ``size`` bytes: a record that was torn as the driver died."""
        os.ftruncate(self._fd, size)

    def append(self, events: Sequence[Event]) -> None:
        """Write events, in one piece."""
        if events:
            self._write(b"".join(to_json(event) + b"\n" for event in events))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def read_header(path: Path) -> RunHeader:
    """Read the first line of a journal alone.

    Raises:
        JournalError: There is none, or it is of another version or damaged.
    """
    with path.open("rb") as file:
        return _decode_header(file.readline(), path)


def _decode_header(line: bytes, path: Path) -> RunHeader:
    try:
        header = msgspec.json.decode(line, type=RunHeader)
    except msgspec.DecodeError as error:
        raise JournalError(f"{path}, line 1 is no header of a run: {error}") from error
    if header.version != FORMAT_VERSION:
        raise JournalError(f"{path} has format {header.version}; this version reads {FORMAT_VERSION}")
    return header


def read_journal(path: Path) -> tuple[RunHeader, list[Event], int]:
    """Read a journal.

    A torn last line (the driver died while it wrote) is left out.

    Returns:
        The header, the events, and the size in bytes of what was whole.

    Raises:
        JournalError: There is none, it is of another version, or damaged (with the line's number).
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise JournalError(f"there is no journal at {path}") from None
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    if not lines:
        raise JournalError(f"the journal {path} is empty")
    header = _decode_header(lines[0], path)
    events = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            events.append(from_json(line))
        except msgspec.DecodeError as error:
            raise JournalError(f"{path}, line {number} is damaged: {error}") from error
    return header, events, whole
