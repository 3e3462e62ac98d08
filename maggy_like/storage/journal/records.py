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
    strict_json,
    to_json,
)
from optimizers.core.study import Study
from optimizers.core.trial import TrialState

Earlier = tuple[tuple[Observation, ...], ...]
"""The observations of each earlier run (see :attr:`optimizers.core.base.Problem.earlier`)."""


class EarlierResult(msgspec.Struct, frozen=True, array_like=True):
    """One observation. JSON has no infinity, so a loss that is not finite is None."""

    trial: int
    config: dict[str, Any]
    step: int
    loss: float | None
    losses: tuple[float | None, ...] = ()  # all losses, if there are several objectives


def to_records(earlier: Earlier) -> list[list[EarlierResult]]:
    """Convert observations of earlier runs to records."""
    return [[_to_record(seen) for seen in run] for run in earlier]


def from_records(records: Iterable[Iterable[EarlierResult]]) -> Earlier:
    """Convert records back to observations."""
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
    """A journal's first record: what must be the same when a run is resumed, and facts for readers."""

    version: int  # version of the format
    name: str  # name of the run
    created: float  # Unix time
    space: dict[str, Any]  # the search space as JSON
    optimizer: str  # the optimizer and its options, from :meth:`Optimizer.describe`
    directions: list[str | None]  # ``max`` or ``min`` for each objective; null if the first report decides it
    metrics: list[str]  # the objectives' names; empty if the only one was not named
    seed: int  # source of all randomness
    max_budget: int  # steps of a full training
    value: str = "best"  # which report is a trial's value: ``best`` or ``last``
    constrained: bool = False  # whether the space has constraints, which are functions and so not in its JSON
    # Results of earlier runs from which this one began, so that a resume does not need them.
    earlier: list[list[EarlierResult]] = []
    # Descriptions of the groups of trials to compare. Empty if the best trial is sought.
    groups: list[str] = msgspec.field(default_factory=list, name="variants")
    comparisons: dict[str, Any] = {}  # how the groups are compared, for readers
    began_with: int | None = None  # number of configurations, as it was given; 0 if it was not, null if unknown

    @property
    def finds_best(self) -> bool:
        """Whether the search looks for the best trial, instead of comparing groups of trials."""
        return not self.groups


class RunTotals(msgspec.Struct, frozen=True, omit_defaults=True):
    """The totals of a run that a list of runs shows. With them, a list reads only both ends of a journal."""

    objective: str  # name of the objective, or of the first one
    direction: str
    seconds: float  # seconds for which all drivers had the run, as far as they are known
    is_longer: bool = False  # whether they had it for longer, by an unknown time
    trials: int = 0  # number of trials
    failed: int = 0  # number of failed trials
    training: TrialState | None = None  # state of the training. None without one
    best_value: float | None = None  # value of the best trial, or of the training in a run without a search
    best_config: dict[str, Any] | None = None  # the JSON form of its configuration

    @classmethod
    def of(cls, study: Study, seconds: float, *, is_longer: bool, finds_best: bool) -> RunTotals:
        """Return the totals of a study."""
        trials = [trial for trial in study.trials if not trial.training]
        training = next((trial for trial in reversed(study.trials) if trial.is_final_training), None)
        best = training if not trials else study.best if finds_best else None
        named = study.objectives.given or [trial.objective for trial in study.trials if trial.objective]
        return cls(
            objective=next(iter(named), "value"),
            direction=study.direction or "max",
            seconds=seconds,
            is_longer=is_longer,
            trials=len(trials),
            failed=sum(trial.state is TrialState.FAILED for trial in trials),
            training=None if training is None else training.state,
            best_value=None if best is None else best.value,
            best_config=None if best is None else form_of(best.config),
        )


@final
class RunStatus(msgspec.Struct, frozen=True, omit_defaults=True, tag="status"):
    """The begin, resume or end of a run by a driver."""

    status: Ending  # ``running`` at the begin, or the run's ending (see :attr:`maggy_like.Result.ending`)
    time: float  # Unix time
    seconds: float = 0.0  # at the end, the seconds for which the driver had the run
    store: str = "checkpoints"  # the place of the checkpoints: a URL, or relative to the run's directory
    environment: dict[str, str] = {}  # names and versions of what the driver runs on, for people
    # At the begin, a hash of the training function's code (see ``code.code_hash``); empty if it is not known.
    code: str = ""
    totals: RunTotals | None = None  # at the end, the totals of the run. None in journals of earlier versions
    function: str = ""  # at the begin, where the function is (see :func:`~maggy_like.train_function.code.place_of`)


Record = RunHeader | RunStatus | Event
"""The content of one line of a journal."""


class Part(NamedTuple):
    """Lines of one file of a journal: the file's name for messages, the lines, and the number of the first.

    Only the last part of a file may end without a newline.
    """

    name: str
    data: bytes
    first: int = 1


@dataclass
class Contents:
    """The contents of a journal."""

    header: RunHeader  # its first record
    events: list[Event] = field(default_factory=list)  # all undamaged events
    begun: RunStatus | None = None  # the newest record of a driver that began or resumed the run
    ended: RunStatus | None = None  # how that driver ended it; None if it has not, or was killed
    # Unix times of each driver's first and last record.
    sessions: list[tuple[float, float]] = field(default_factory=list)
    unended: int = 0  # number of earlier drivers that recorded no end: they were killed after their last record
    last: int = 0  # the number of the last record
    damage: list[str] = field(default_factory=list)  # one sentence for each damage

    @property
    def earlier_seconds(self) -> float:
        """Known seconds for which the drivers before the last had the run."""
        return sum(end - begin for begin, end in self.sessions[:-1])

    def follows(self, numbered: tuple[int, Record]) -> bool:
        """Add a record if it is the next one."""
        number, record = numbered
        if number != self.last + 1 or type(record) is RunHeader:
            return False
        self.last = number
        self.take(record)
        return True

    def take(self, record: RunStatus | Event) -> None:
        """Add a record of any number."""
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
            if record.seconds and self.sessions:  # measured by a clock that is not set meanwhile, unlike the host's
                begin = self.sessions[-1][0]
                self.sessions[-1] = begin, begin + record.seconds
                return
        self._extend_session(record.time)

    def _extend_session(self, time: float) -> None:
        """Extend the last session to ``time``, or the one before: an attempt may have been lost with that driver."""
        if self.sessions:
            at = -2 if time < self.sessions[-1][0] and len(self.sessions) > 1 else -1
            begin, end = self.sessions[at]
            self.sessions[at] = begin, max(end, time)


def encode(records: Iterable[Record], first: int) -> bytes:
    """Return the lines of ``records``, numbered from ``first``.

    Number and checksum (a CRC-32 of the text before it) are the last fields of each JSON object, so that any reader of
    JSON lines can read a journal.
    """
    return b"".join(_seal(record, number) for number, record in enumerate(records, first))


def decode(parts: Iterable[Part]) -> Contents:
    """Read the undamaged records of a journal."""
    *_, contents = decode_each(parts)
    return contents


def decode_each(parts: Iterable[Part]) -> Iterator[Contents]:
    """Read a journal part by part, and yield the contents after each part.

    The contents are always the same object; the caller may remove the events that it has used. Numbers rise by one,
    from the header's. A gap is a loss. Records with a lower number than the last are left over from before a repair;
    they are counted at the end, so the contents are yielded once more then.
    """
    contents: Contents | None = None
    damaged = 0  # lines since the last undamaged record
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
    if type(record) is RunStatus and record.totals is not None and record.totals.best_value is not None:
        strict = msgspec.structs.replace(record.totals, best_value=strict_json([record.totals.best_value])[0])
        record = msgspec.structs.replace(record, totals=strict)
    plain = msgspec.json.encode(record) if isinstance(record, _OF_DRIVER) else to_json(record)
    body = plain[:-1] + b',"n":%d' % number
    return body + _checksum(body) + b"\n"


def _checksum(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


def open_line(line: bytes) -> tuple[int, Record] | None:
    """Return a line's number and record; None if it is damaged."""
    body = line[:-_SEAL]
    number = body[body.rfind(b',"n":') + 5 :]
    if not line.endswith(_checksum(body)) or not number.isdigit():
        return None
    try:
        record = _OF_RUN.decode(line) if line.startswith(_STARTS_OF_RUN) else from_json(line)
        if type(record) is CheckpointSaved:
            check_owner(record.name, record.trial, record.attempt)  # the state of this name is unpickled
        return int(number), record
    except ValueError:
        return None


def _salvage(line: bytes) -> list[tuple[int, Record]]:
    """Return the undamaged records in a damaged line, which has two if a newline was damaged."""
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
        f"{where} must be the header of a run, and is damaged or something else; put a copy of that line back, or "
        "start another run"
    )


class _Version(msgspec.Struct, tag="run"):
    version: int


# Lax decoding turns the strings of non-finite numbers back into floats.
_OF_RUN: msgspec.json.Decoder[RunHeader | RunStatus] = msgspec.json.Decoder(RunHeader | RunStatus, strict=False)
