"""The messages between the driver and its workers, and between a worker's agent and its child.

Each is a :mod:`msgspec` struct in a tagged union, msgpack on the wire. Decoding checks every field: its size, its range
and its form. So nothing that comes from the network is unpickled or trusted by shape. A worker of ours stays below all
bounds; a message that exceeds one is refused as malformed. Every worker loads this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from maggy_like.protocol.state_names import check_owner
from maggy_like.protocol.versions import Versions
from optimizers.core.failure_kinds import FailureKind as FailureKind  # workers load nothing else of optimizers

UNBOUNDED = 2**31 - 1
"""The budget of a function that was given no number of steps."""

MAX_STEP = 2**63 - 1
"""The largest step, and the most negative one without its sign."""

MAX_NAME = 500
"""Characters of a metric's name."""

MAX_NAMES = 10_000
"""Different names of metrics that one trial may report."""

MAX_NESTED = 50
"""How deep lists and dicts may be nested in what a function returned."""

Number = Annotated[int, Meta(ge=0, le=UNBOUNDED)]
"""Of a trial, an attempt, a worker, an incarnation or a rank."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Step = Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Host = Annotated[str, Meta(max_length=255)]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Line = Annotated[str, Meta(max_length=10_000)]
Text = Annotated[str, Meta(max_length=1_000_000)]


def is_flat(value: Any, depth: int) -> bool:
    """Whether plain data is nested ``depth`` times at most, and has text for keys.

    Example:
        >>> is_flat([{"a": [1]}], 3), is_flat([{"a": [1]}], 2), is_flat({1: 2}, 3)
        (True, False, False)
    """
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            return False
        value = value.values()
    elif not isinstance(value, list):
        return True
    return depth > 0 and all(is_flat(item, depth - 1) for item in value if type(item) in (list, dict))


__all__ = ["FailureKind"]


PROTOCOL_VERSION = 11
"""Counts with each change of a message, or of the ``WorkerTask`` that workers are given."""

MAX_TYPES = 20
"""How many classes of an exception a worker names."""

MAX_PLACE = 300
"""Characters of a class's name, or of a place in the user's code."""

MAX_MODULES = 20_000
"""How many modules a worker names at once."""

Columns = tuple[list[Step], list[float]]
"""Steps and values of one metric."""

OutcomeKind = Literal["returned", "stopped", "raised", "died"]


class RankInfo(msgspec.Struct, frozen=True):
    """Which of the workers that run an attempt together one is, in torchrun's terms.

    Attributes:
        rank: Its number among all.
        world_size: How many they are.
        local_rank: Its number among those of its host.
        local_world_size: How many of them are on its host.
        group_rank: Number of its host.
        group_world_size: How many hosts there are.
        devices: The GPUs of all ranks on its host: the ``n``-th is that of local rank ``n``, and further ones follow.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    devices: tuple[str, ...] = ()


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker introduces itself; the driver ignores whatever it sends before.

    Attributes:
        store_unseen: Why the run's store, as the worker sees it, is not the driver's; empty where it is just another
            place, None where it is the same.
        connection: How often this incarnation has said hello, so that an old hello counts for nothing.
        versions: What the worker runs, if it says so.
    """

    version: Number
    worker: Number
    incarnation: Number
    host: Host
    pid: Count
    accelerators: Annotated[list[Host], Meta(max_length=1000)]
    store_unseen: Line | None
    connection: Count = 1
    versions: Versions | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has a warm child and can take a trial."""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life; the driver answers each with one of its own."""


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """Measurements of a trial.

    Attributes:
        objective: Name of the metric in ``columns`` that is optimised.
        awaiting: Whether the trial waits for a :class:`Decided` before it goes on.
        slowed: Whether the trial had to wait, since it reports more than is taken in; said once an attempt.
    """

    trial: Number
    attempt: Number
    objective: Name
    columns: dict[Name, Columns]
    awaiting: bool = False
    slowed: bool = False

    def __post_init__(self) -> None:
        for steps, values in self.columns.values():
            if len(steps) != len(values):
                raise ValueError("a column has other than one value a step")
        if self.columns and self.objective not in self.columns:
            raise ValueError("the objective is not among the columns")


class Checkpointed(msgspec.Struct, frozen=True, tag="checkpointed"):
    """A trial saved its state.

    Attributes:
        name: The state's, which must be of this attempt (see :mod:`maggy_like.protocol.state_names`): others load it,
            and it may be removed.
    """

    trial: Number
    attempt: Number
    step: Step
    name: Name

    def __post_init__(self) -> None:
        check_owner(self.name, self.trial, self.attempt)


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True, tag="waiting"):
    """A trial waits for the store; without a reason and a call, the wait is over.

    Attributes:
        reason: What the store refused, if it did.
        calls: Whether the store has not answered a call yet.
    """

    trial: Number
    attempt: Number
    reason: Text = ""
    calls: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the trial no longer waits."""
        return not (self.reason or self.calls)


class Logged(msgspec.Struct, frozen=True, omit_defaults=True, tag="logged"):
    """Lines that a trial printed; ``dropped`` more stand only in the trial's log file.

    Attributes:
        rank: Whose lines, where several workers run the trial together.
        live: What the line after them shows now, which is still being written or redrawn, such as a progress bar. The
            next message of the same trial and rank says what has become of it.
    """

    trial: Number
    attempt: Number
    lines: Annotated[list[Line], Meta(max_length=1000)]
    dropped: Count = 0
    rank: Number | None = None
    live: Line = ""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Rank 0 has opened the store at which the ranks meet."""

    trial: Number
    attempt: Number
    host: Host
    port: Port


class Held(msgspec.Struct, frozen=True, tag="held"):
    """The answer to a :class:`Halt`: the rank has made ``reports`` reports, and waits in the next."""

    trial: Number
    attempt: Number
    reports: Count


class Finished(msgspec.Struct, frozen=True, omit_defaults=True, tag="finished"):
    """A trial's attempt is over; the worker is ready for the next.

    Attributes:
        outcome: ``returned``, ``stopped`` (as asked), ``raised`` or ``died`` (the process ended or was killed).
        kind: Of the failure, if it raised or died.
        types: Of an exception: the names of its class and of those that it is derived from.
        place: Of an exception: where in the user's code it came from, as ``file:function:line``.
        at: When it failed, in Unix time: which rank was the first.
        attributes: What the function returned beside its numbers
            (see :func:`maggy_like.protocol.values.as_attributes`).
        returned: What a function that is no training returned, if it is plain data.
        stored: Whether it is in the store, since it is not.
        cut_at: The step past its budget whose report ended the function; None if it came to its own end.
    """

    trial: Number
    attempt: Number
    outcome: OutcomeKind
    value: float | None = None
    metrics: dict[Name, float] = {}
    kind: FailureKind | None = None
    message: Text = ""
    traceback: Text = ""
    types: Annotated[list[Annotated[str, Meta(max_length=MAX_PLACE)]], Meta(max_length=MAX_TYPES)] = []
    place: Annotated[str, Meta(max_length=MAX_PLACE)] = ""
    at: float = 0.0
    returned: Any = None
    stored: bool = False
    attributes: dict[str, Any] = {}
    cut_at: Step | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind.is_drivers:
            raise ValueError(f"the driver alone records {self.kind}")
        if not (is_flat(self.returned, MAX_NESTED) and is_flat(self.attributes, MAX_NESTED)):
            raise ValueError(f"nested more than {MAX_NESTED} times, or keys that are no text")


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The worker can run no trial at all, and why."""

    message: Text


class Noted(msgspec.Struct, frozen=True, omit_defaults=True, tag="noted"):
    """What the user should know about this worker or its trial; of those about one subject, the first is shown.

    Attributes:
        subject: Such as ``logs``.
        trial: The trial that the note is about, if it is about one.
    """

    subject: Literal["logs", "loading", "states"]
    message: Line
    trial: Number | None = None


class Imported(msgspec.Struct, frozen=True, tag="imported"):
    """Modules of installed packages that a trial has imported: to be imported before the next ones start."""

    modules: Annotated[list[Annotated[str, Meta(max_length=MAX_PLACE)]], Meta(max_length=MAX_MODULES)]

    @classmethod
    def of(cls, modules: Sequence[str]) -> Imported:
        """What can be sent of a list of modules."""
        return cls([name for name in modules if len(name) <= MAX_PLACE][:MAX_MODULES])


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The worker leaves."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The driver knows the worker, on this connection."""


class Assign(msgspec.Struct, frozen=True, tag="assign"):
    """Run this attempt of this trial.

    Attributes:
        budget: Step up to which the attempt may run.
        milestones: Steps at which the trial must wait for a :class:`Decided`.
        objective: The metric that is optimised, or None while it is not known.
        is_search: Whether a metric is optimised at all; where not, the one that is reported first stands for it.
        checkpoint: Name of the state to go on from, if there is one: its own, or that of the trial it starts from.
        older: Names of states saved before that one, the newest first, should it be damaged or gone.
        discard: Names of this trial's older states, which are not needed any more.
        rank_info: Which of them the worker is, where several run the attempt together.
    """

    trial: int
    attempt: int
    config: dict[str, Any]
    budget: int
    milestones: tuple[int, ...] = ()
    objective: str | None = None
    is_search: bool = True
    checkpoint: str | None = None
    discard: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    rank_info: RankInfo | None = None


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Where the ranks of an attempt meet: the store that rank 0 has opened."""

    trial: int
    attempt: int
    host: str
    port: int


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The answer to a :class:`Reported` that is awaited; every rank waits for it at that step."""

    trial: int
    attempt: int
    stop: bool


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """The answer to a :class:`Checkpointed`: the journal has it, and the older states ``discard`` may go."""

    trial: int
    attempt: int
    discard: tuple[str, ...] = ()


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """Wait in the next report, and say how many were made: the ranks are to stop at the same one."""

    trial: int
    attempt: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End this attempt at its next report, or in the one with number ``at``; kill it if it does not."""

    trial: int
    attempt: int
    at: int | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Kill this attempt: another rank of it has failed."""

    trial: int
    attempt: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the worker."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The driver does not accept this peer, and why."""

    reason: str


ToDriver = (
    Hello
    | Ready
    | Beat
    | Reported
    | Checkpointed
    | Waiting
    | Logged
    | Noted
    | Imported
    | Opened
    | Held
    | Finished
    | Broken
    | Goodbye
)
ToWorker = Welcome | Assign | Meet | Decided | Kept | Halt | Stop | Abort | Shutdown | Refused | Beat


def awaits_answer(message: ToDriver) -> bool:
    """Whether a worker, or the trial that it runs, does nothing until the driver answers."""
    return message.awaiting if isinstance(message, Reported) else isinstance(message, Ready | Opened | Held | Finished)


_ENCODER = msgspec.msgpack.Encoder()
_TO_DRIVER: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_ALSO_MALFORMED = UnicodeDecodeError, RecursionError  # what msgspec lets through for text that is none, and deep nests


def encode(message: ToDriver | ToWorker) -> bytes:
    """The message's bytes."""
    if isinstance(message, Assign):
        message = msgspec.structs.replace(message, config=_each(_form, message.config))
    return _ENCODER.encode(message)


def decode_to_driver(frame: bytes | memoryview) -> ToDriver:
    """Read what a worker or child sent.

    Raises:
        msgspec.DecodeError: The frame is no message of this protocol.
    """
    try:
        return _TO_DRIVER.decode(frame)
    except _ALSO_MALFORMED as error:
        raise msgspec.DecodeError(str(error)) from None


def foreign_hello(frame: bytes | memoryview) -> dict[str, Any] | None:
    """A hello in another version of the protocol, whatever its form, as plain data; None for all else."""
    try:
        said = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, *_ALSO_MALFORMED):
        return None
    is_hello = isinstance(said, dict) and said.get("type") == "hello" and isinstance(said.get("version"), int)
    return said if is_hello and said["version"] != PROTOCOL_VERSION else None


def decode_to_worker(frame: bytes | memoryview) -> ToWorker:
    """Read what the driver sent.

    Raises:
        msgspec.DecodeError: The frame is no message of this protocol.
    """
    try:
        message = _TO_WORKER.decode(frame)
        if isinstance(message, Assign):
            message = msgspec.structs.replace(message, config=_each(_value, message.config))
        return message
    except _ALSO_MALFORMED as error:
        raise msgspec.DecodeError(str(error)) from None


def _each(change: Callable[[Any], Any], config: dict[str, Any]) -> dict[str, Any]:
    return {name: change(value) for name, value in config.items()}


def _form(value: Any) -> Any:
    """A value in the form of ``optimizers.space.scalars.to_json``, since msgpack has lists and no tuples either."""
    if isinstance(value, tuple):
        return {"tuple": [_form(inner) for inner in value]}
    return [_form(inner) for inner in value] if isinstance(value, list) else value


def _value(form: Any) -> Any:
    if isinstance(form, dict):
        return tuple(map(_value, form["tuple"])) if form.keys() == {"tuple"} else form
    return [_value(inner) for inner in form] if isinstance(form, list) else form
