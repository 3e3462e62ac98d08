"""Records: one JSON line each, with a number and a checksum, so that damage is found and its place is known."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import msgspec

from maggy_like.errors import JournalError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import check_owner
from optimizers.core.base import Observation
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Event,
    config_of,
    form_of,
    from_json,
    to_json,
)

Earlier = tuple[tuple[Observation, ...], ...]
"""The observations of each earlier run (see :attr:`optimizers.core.base.Problem.earlier`)."""


class EarlierResult(msgspec.Struct, frozen=True, array_like=True):
    """One observation. JSON has no infinity, so a loss that is not finite is None.

    Attributes:
        losses: All of them, where there are several objectives.
    """

    trial: int
    config: dict[str, Any]
    step: int
    loss: float | None
    losses: tuple[float | None, ...] = ()


def to_records(earlier: Earlier) -> list[list[EarlierResult]]:
    """The form that :func:`from_records` reads back."""
    return [[_to_record(seen) for seen in run] for run in earlier]


def from_records(records: Iterable[Iterable[EarlierResult]]) -> Earlier:
    """The observations of :func:`to_records`."""
    return tuple(tuple(map(_from_record, run)) for run in records)


def _to_record(seen: Observation) -> EarlierResult:
    return EarlierResult(
        seen.trial, form_of(seen.config), seen.step, _strict(seen.loss), tuple(map(_strict, seen.losses))
    )


def _from_record(record: EarlierResult) -> Observation:
    losses = tuple(map(_infinite, record.losses))
    return Observation(record.trial, config_of(record.config), record.step, _infinite(record.loss), losses=losses)


def _strict(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _infinite(loss: float | None) -> float:
    return math.inf if loss is None else loss


FORMAT_VERSION = 5


@final
class RunHeader(msgspec.Struct, frozen=True, tag="run"):
    """What must be the same when a run is resumed, and what readers want to know; a journal's first record.

    Attributes:
        version: Of this format.
        name: Of the run.
        created: Unix time.
        space: The search space as JSON.
        optimizer: The optimizer and its options, as :meth:`Optimizer.describe` has them.
        directions: ``max`` or ``min``, for each objective; null where the first report was to say it.
        metrics: The objectives' names; empty if the only one's was not given.
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        value: What a trial is worth: ``best`` or ``last``.
        constrained: Whether the space has constraints, which are functions and not in its JSON.
        earlier: What the run knew of earlier ones when it began, so that a resume needs none of them.
        variants: What each variant of an ablation is, in words that change when it does.
    """

    version: int
    name: str
    created: float
    space: dict[str, Any]
    optimizer: str
    directions: list[str | None]
    metrics: list[str]
    seed: int
    max_budget: int
    value: str = "best"
    constrained: bool = False
    earlier: list[list[EarlierResult]] = []
    variants: list[str] = []


@final
class RunStatus(msgspec.Struct, frozen=True, omit_defaults=True, tag="status"):
    """That a driver has begun a run or taken it up, or how it ended the run.

    Attributes:
        status: ``running``, while a driver has it, or the run's ending (see :attr:`maggy_like.Result.ending`).
        time: Unix time.
        seconds: How long the driver had it, at the end.
        store: Where the saved states are: a URL, or relative to the run's folder.
        environment: What the driver that has begun it ran on: names and versions, for people.
        code: Identifies the code of the training function (see :func:`~maggy_like.train_function.code.code_hash`)
            where the driver has begun it; empty if it is not known.
    """

    status: Ending
    time: float
    seconds: float = 0.0
    store: str = "checkpoints"
    environment: dict[str, str] = {}
    code: str = ""


Record = RunHeader | RunStatus | Event
"""What a line of a journal holds."""


class Part(NamedTuple):
    """Lines of one file of a journal: its name for people, the lines, and the number of the first of them.

    Only the last part of a file may end without a newline.
    """

    name: str
    data: bytes
    first: int = 1


@dataclass
class Contents:
    """What a journal holds.

    Attributes:
        header: Its first record.
        events: All events that are whole.
        begun: The last word that a driver began the run, or took it up.
        ended: How that one ended it; None if it has not, or was killed.
        sessions: When each driver had the run: from its first word to its last, in Unix time.
        unended: How many drivers before the last have recorded no end: they were killed, after their last word.
        last: The number of the last record.
        damage: What is wrong with it, a sentence each; empty if nothing is.
    """

    header: RunHeader
    events: list[Event] = field(default_factory=list)
    begun: RunStatus | None = None
    ended: RunStatus | None = None
    sessions: list[tuple[float, float]] = field(default_factory=list)
    unended: int = 0
    last: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def earlier_seconds(self) -> float:
        """For how long drivers before the last had the run, as far as is known."""
        return sum(end - begin for begin, end in self.sessions[:-1])

    def follows(self, numbered: tuple[int, Record]) -> bool:
        """Take in a record if it is the next one."""
        number, record = numbered
        if number != self.last + 1 or type(record) is RunHeader:
            return False
        self.last = number
        self.take(record)
        return True

    def take(self, record: RunStatus | Event) -> None:
        """Take in a record, whatever its number."""
        if type(record) is not RunStatus:
            self.events.append(record)
            if type(record) is not AttemptStarted and type(record) is not AttemptEnded:
                return  # it has no time
        elif not record.status.is_over:
            self.unended += self.begun is not None and self.ended is None
            self.begun, self.ended = record, None
            self.sessions.append((record.time, record.time))
        else:
            self.ended = record
            if record.seconds and self.sessions:  # its own clock is not set meanwhile, as that of the host may be
                begin = self.sessions[-1][0]
                self.sessions[-1] = begin, begin + record.seconds
                return
        self._extend_session(record.time)

    def _extend_session(self, time: float) -> None:
        """A driver had the run then. The last one, or the one before: an attempt that was lost with that."""
        if self.sessions:
            at = -2 if time < self.sessions[-1][0] and len(self.sessions) > 1 else -1
            begin, end = self.sessions[at]
            self.sessions[at] = begin, max(end, time)


def encode(records: Iterable[Record], first: int) -> bytes:
    """The lines of ``records``, numbered from ``first``.

    Number and checksum (a CRC-32 of what stands before it) are the last fields of each JSON object, so that
    every reader of JSON lines reads a journal.
    """
    return b"".join(_seal(record, number) for number, record in enumerate(records, first))


def decode(parts: Iterable[Part]) -> Contents:
    """Read a journal as far as it is whole.

    Raises:
        JournalError: The header is damaged, or of another version.
    """
    *_, contents = decode_each(parts)
    return contents


def decode_each(parts: Iterable[Part]) -> Iterator[Contents]:
    """Read a journal part by part: after each, the contents as they are by then.

    They are always the same object; who has used its events may take them away. Numbers rise by one from the header's
    on. A gap is a loss; what does not lie past the last one was left over as a repaired journal took the place of a
    damaged one, and is counted at the end: so the contents come once more then.

    Raises:
        JournalError: The header is damaged, or of another version.
    """
    contents: Contents | None = None
    damaged = 0  # lines since the last whole record
    left_over: Counter[str] = Counter()
    for part in parts:
        *lines, tail = part.data.split(b"\n")
        behind = part.first + len(lines)
        for line_number, line in enumerate((*lines, tail) if tail else lines, start=part.first):
            whole = open_line(line) if line_number < behind else None
            if contents is not None and whole is not None and contents.follows(whole):
                damaged = 0
                continue
            where = f"{part.name}, line {line_number}"
            found = [whole] if whole is not None else _salvage(line)
            if contents is None:
                contents = Contents(_header(line, found, where), last=found[0][0])
                del found[0]
            if whole is None:
                damaged += not found
                kept = f"; {len(found)} whole records in it are kept" if found else ""
                contents.damage.append(f"{where} is {'damaged' if line_number < behind else 'torn'}{kept}")
            for number, record in found:
                if number <= contents.last or isinstance(record, RunHeader):
                    left_over[part.name] += 1
                    continue
                if (missing := number - contents.last - 1) > damaged:
                    contents.damage.append(f"{missing} records are missing before {where}")
                contents.last, damaged = number, 0
                contents.take(record)
        if contents is not None:
            yield contents
    if contents is None:
        raise JournalError("the journal is empty; start another run")
    contents.damage += (f"{name} has {count} records from before a repair" for name, count in left_over.items())
    yield contents


_END = re.compile(rb',"n":(\d{1,18}),"crc":"([0-9a-f]{8})"\}')
_STARTS_OF_RUN = b'{"type":"run"', b'{"type":"status"'
_SEAL = len(b',"crc":"01234567"}')
_START = re.compile(rb'\{"type":"')
_OF_DRIVER = RunHeader, RunStatus


def _seal(record: Record, number: int) -> bytes:
    plain = msgspec.json.encode(record) if isinstance(record, _OF_DRIVER) else to_json(record)
    body = plain[:-1] + b',"n":%d' % number
    return body + _checksum(body) + b"\n"


def _checksum(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


def open_line(line: bytes) -> tuple[int, Record] | None:
    """A line's number and record, if it is whole."""
    body = line[:-_SEAL]
    number = body[body.rfind(b',"n":') + 5 :]
    if not line.endswith(_checksum(body)) or not number.isdigit():
        return None
    try:
        record = _OF_RUN.decode(line) if line.startswith(_STARTS_OF_RUN) else from_json(line)
        if type(record) is CheckpointSaved:
            check_owner(record.name, record.trial, record.attempt)  # what it names is unpickled
        return int(number), record
    except ValueError:
        return None


def _salvage(line: bytes) -> list[tuple[int, Record]]:
    """The whole records in a line that is none: where a newline was damaged, two stand in one."""
    found, done = [], 0
    starts = [match.start() for match in _START.finditer(line)]
    for end in _END.finditer(line):
        for start in starts:
            if done <= start < end.start() and (record := open_line(line[start : end.end()])) is not None:
                found.append(record)
                done = end.end()
                break
    return found


def _header(line: bytes, found: list[tuple[int, Record]], where: str) -> RunHeader:
    if found and isinstance(header := found[0][1], RunHeader) and header.version == FORMAT_VERSION:
        return header
    try:
        version = msgspec.json.decode(line, type=_Version).version
    except (msgspec.DecodeError, UnicodeDecodeError):
        version = FORMAT_VERSION
    if version != FORMAT_VERSION and (found or not _END.search(line)):
        raise JournalError(f"{where} has format {version}; this version of maggy_like reads {FORMAT_VERSION}")
    raise JournalError(
        f"{where} is no header of a run, or a damaged one; without it the run cannot go on: put a copy of that "
        "line back, or start another run"
    )


class _Version(msgspec.Struct, tag="run"):
    version: int


_OF_RUN: msgspec.json.Decoder[RunHeader | RunStatus] = msgspec.json.Decoder(RunHeader | RunStatus)
