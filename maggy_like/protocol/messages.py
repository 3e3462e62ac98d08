"""The messages between the driver and its workers, and between a worker's agent and its child.

Each is a :mod:`msgspec` struct in a tagged union, msgpack on the wire. Decoding checks every field: its size, its range
and its form. So nothing that comes from the network is unpickled or trusted by shape. A worker of ours stays below all
bounds; a message that exceeds one is refused as malformed. Every worker loads this module, so it imports little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from maggy_like.protocol.endings import StopReason
from maggy_like.protocol.state_names import check_owner
from maggy_like.version import __version__
from optimizers.core.trial import FailureKind as FailureKind  # workers load nothing else of optimizers

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The minor version: packages and functions that are pickled by value are made for one."""

Short = Annotated[str, Meta(max_length=5000)]

_REMEDY = (
    "install the same version on all machines, or send the driver's with spark-submit --py-files (docs/shipping.md)"
)


class Versions(msgspec.Struct, frozen=True):
    """What a process runs."""

    package: Short  # the version of maggy_like
    home: Short  # the directory or archive that contains it
    python: Short  # the minor version of Python
    executable: Short


def own_versions() -> Versions:
    """Return the versions of this process."""
    home = os.path.abspath(f"{__file__}/../../..")
    return Versions(__version__, home, PYTHON, sys.executable or "?")


def misfit(worker: Versions, driver: Versions) -> str:
    """Return why a worker's versions do not fit the driver's, and what to do; empty if they fit."""
    if worker.python != driver.python:
        return (
            f"the driver runs Python {driver.python} ({driver.executable}) and the worker Python {worker.python} "
            f"({worker.executable}), which cannot read each other's functions; set PYSPARK_PYTHON to a Python "
            f"{driver.python} that the worker's machine has, or send one with spark.archives (docs/shipping.md)"
        )
    if worker.package != driver.package:
        return (
            f"the driver has maggy_like {driver.package} ({driver.home}) and the worker {worker.package} "
            f"({worker.home}); {_REMEDY}"
        )
    return ""


def foreign_protocol(theirs: Any, protocol: int, driver: Versions) -> str:
    """Return the message about a hello in another version of the protocol."""
    said = theirs.get("versions")
    package, home = (said.get("package"), said.get("home")) if isinstance(said, dict) else (None, None)
    has = f"{str(package)[:100]} ({str(home)[:500]})" if package else "an unknown version"
    return (
        f"the driver has maggy_like {driver.package} ({driver.home}) and the worker {has}: they use versions "
        f"{protocol} and {str(theirs.get('version'))[:20]} of the protocol; {_REMEDY}"
    )


UNBOUNDED = 2**31 - 1
"""The budget of a function without a maximum number of steps."""

MAX_STEP = 2**63 - 1
"""The largest absolute value of a step."""

MAX_NAME = 500
"""Maximum characters of a metric's name."""

MAX_NAMES = 10_000
"""Maximum number of metrics that one trial may report."""

MAX_NESTED = 50
"""Maximum nesting of lists and dicts in what a function returned."""

Number = Annotated[int, Meta(ge=0, le=UNBOUNDED)]
"""The number of a trial, an attempt, a worker, an incarnation or a rank."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Step = Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Host = Annotated[str, Meta(max_length=255)]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Line = Annotated[str, Meta(max_length=10_000)]
Text = Annotated[str, Meta(max_length=1_000_000)]


def is_flat(value: Any, depth: int) -> bool:
    """Return whether plain data is nested at most ``depth`` times, with only text as keys.

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


PROTOCOL_VERSION = 13
"""Increases with each change of a message or of ``WorkerTask``."""

MAX_TYPES = 20
"""Maximum number of an exception's classes in a message."""

MAX_PLACE = 300
"""Maximum characters of a class's name, or of a place in the user's code."""

MAX_MODULES = 20_000
"""Maximum number of modules in a message."""

Columns = tuple[list[Step], list[float]]
"""Steps and values of one metric."""

OutcomeKind = Literal["returned", "stopped", "raised", "died"]


class RankInfo(msgspec.Struct, frozen=True):
    """The place of a worker among those that run an attempt together, in torchrun's terms."""

    rank: int  # the worker's number
    world_size: int  # number of workers
    local_rank: int  # the worker's number on its host
    local_world_size: int  # number of workers on its host
    group_rank: int  # number of its host
    group_world_size: int  # number of hosts
    devices: tuple[str, ...] = ()  # GPUs of its host's ranks: the ``n``-th is for local rank ``n``, the others follow


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker introduces itself; the driver ignores anything it sends before."""

    version: Number
    worker: Number
    incarnation: Number
    host: Host
    pid: Count
    accelerators: Annotated[list[Host], Meta(max_length=1000)]
    # Why it does not see the driver's store; None if it does, empty if the URL means another place on its machine.
    store_unseen: Line | None
    connection: Count = 1  # how many hellos this incarnation has sent, so that the driver ignores an old one
    versions: Versions | None = None  # what the worker runs


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has a warm child and can take a trial."""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A heartbeat; the driver replies to each with another."""


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """Measurements of a trial."""

    trial: Number
    attempt: Number
    objective: Name  # name of the metric in ``columns`` that is optimized
    columns: dict[Name, Columns]
    awaiting: bool = False  # whether the trial waits for a :class:`Decided` before it continues
    # Whether the trial had to wait because it reports faster than the driver receives; set once per attempt.
    slowed: bool = False

    def __post_init__(self) -> None:
        for steps, values in self.columns.values():
            if len(steps) != len(values):
                raise ValueError("a column must have one value per step")
        if self.columns and self.objective not in self.columns:
            raise ValueError("the columns must include the objective")


class Checkpointed(msgspec.Struct, frozen=True, tag="checkpointed"):
    """A trial saved its state.

    The name must belong to this attempt (see :mod:`maggy_like.protocol.state_names`), since other processes load and
    remove the state.
    """

    trial: Number
    attempt: Number
    step: Step
    name: Name

    def __post_init__(self) -> None:
        check_owner(self.name, self.trial, self.attempt)


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True, tag="waiting"):
    """A trial waits for the store; without a reason and a call, the wait is over."""

    trial: Number
    attempt: Number
    reason: Text = ""  # the store's error, if it refused something
    calls: bool = False  # whether a call of the store has not returned yet

    @property
    def is_over(self) -> bool:
        return not (self.reason or self.calls)


class Logged(msgspec.Struct, frozen=True, omit_defaults=True, tag="logged"):
    """Lines that a trial printed; ``dropped`` more are only in the trial's log file."""

    trial: Number
    attempt: Number
    lines: Annotated[list[Line], Meta(max_length=1000)]
    dropped: Count = 0
    rank: Number | None = None  # the rank that printed them, if several workers run the trial together
    # The unfinished line after them, such as a progress bar; the next message of the same trial and rank replaces it.
    live: Line = ""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Rank 0 has opened the store at which the ranks meet."""

    trial: Number
    attempt: Number
    host: Host
    port: Port


class Held(msgspec.Struct, frozen=True, tag="held"):
    """The reply to a :class:`Halt`: the rank has made ``reports`` reports, and waits in the next."""

    trial: Number
    attempt: Number
    reports: Count


class Silent(msgspec.Struct, frozen=True, tag="silent"):
    """An attempt on several workers has reported nothing for too long, and will be killed."""

    trial: Number
    attempt: Number


class Finished(msgspec.Struct, frozen=True, omit_defaults=True, tag="finished"):
    """A trial's attempt is over; the worker is ready for the next."""

    trial: Number
    attempt: Number
    outcome: OutcomeKind  # ``stopped``: as requested; ``died``: the process ended or was killed
    value: float | None = None
    metrics: dict[Name, int | float] = {}
    kind: FailureKind | None = None  # the kind of failure, if it raised or died
    message: Text = ""
    traceback: Text = ""
    # The names of the exception's class and its base classes.
    types: Annotated[list[Annotated[str, Meta(max_length=MAX_PLACE)]], Meta(max_length=MAX_TYPES)] = []
    # Where in the user's code the exception was raised, as ``file:function:line``.
    place: Annotated[str, Meta(max_length=MAX_PLACE)] = ""
    at: float = 0.0  # Unix time of a failure, which shows which rank failed first
    returned: Any = None  # what a function given to ``run`` returned, if it is plain data
    stored: bool = False  # whether the returned value is in the store, because it is not plain data
    attributes: dict[str, Any] = {}  # what the function kept or returned apart from numbers (``values.as_attributes``)
    cut_at: Step | None = None  # the step past its budget whose report ended the function; None if it ended by itself
    paused: bool = False  # whether the function waits in its report for the trial's next attempt
    whole: bool = False  # whether the function was free to train to the whole budget, and returned without a report
    files: bool = False  # whether the trial has files, which its worker keeps now
    stood: Line = ""  # the user's line at which its process was when it was killed; empty if unknown
    is_in_collective: bool = False  # whether the process waited there for the other ranks

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind.is_drivers:
            raise ValueError(f"only the driver records {self.kind}")
        if not (is_flat(self.returned, MAX_NESTED) and is_flat(self.attributes, MAX_NESTED)):
            raise ValueError(f"values must be nested at most {MAX_NESTED} times and have only text as keys")


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The worker cannot run any trial, and why."""

    message: Text


NoteSubject = Literal["late", "logs", "loading", "restart", "slow", "states", "threads", "files", "waiting", "shared"]


class Noted(msgspec.Struct, frozen=True, omit_defaults=True, tag="noted"):
    """A note for the user about this worker or its trial; only the first about each subject is shown."""

    subject: NoteSubject
    message: Line
    trial: Number | None = None  # the trial that the note is about, if any


class Imported(msgspec.Struct, frozen=True, tag="imported"):
    """Modules of installed packages that a trial imported, to be imported before the next trials start."""

    modules: Annotated[list[Annotated[str, Meta(max_length=MAX_PLACE)]], Meta(max_length=MAX_MODULES)]

    @classmethod
    def of(cls, modules: Sequence[str]) -> Imported:
        """Make the message from the modules that fit into it."""
        return cls([name for name in modules if len(name) <= MAX_PLACE][:MAX_MODULES])


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The worker leaves."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The driver accepts the worker on this connection."""


NO_FILES, UNKNOWN_FILES = 0, -1
"""In :attr:`Assign.files`: no earlier attempt has left files; whether one has is not known."""


class Assign(msgspec.Struct, frozen=True, tag="assign"):
    """Run this attempt of this trial."""

    trial: int
    attempt: int
    config: dict[str, Any]
    budget: int  # step up to which the attempt may run
    milestones: tuple[int, ...] = ()  # steps at which the trial must wait for a :class:`Decided`
    objective: str | None = None  # the metric that is optimized, or None while it is not known
    is_search: bool = True  # whether a metric is optimized; if not, the first reported metric takes its place
    # Name of the state to continue from: the trial's own, or that of the trial it starts from.
    checkpoint: str | None = None
    discard: tuple[str, ...] = ()  # names of this trial's older states that are no longer needed
    # Names of states saved before ``checkpoint``, newest first, in case it is damaged or missing.
    older: tuple[str, ...] = ()
    open_ended: bool = False  # if True, a function that does not read its budget may train past it
    rank_info: RankInfo | None = None  # the worker's rank, if several run the attempt together
    max_budget: int = 0  # steps of a full training, if that is more. The attempt pauses at its budget then
    files: int = NO_FILES  # the last attempt that has left files, which are to be restored
    directory: bytes = b""  # path of the trial's own directory; the agent fills in this one and the next
    working_directory: bytes = b""  # path of its working directory; empty for that of the worker


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Where the ranks of an attempt meet: the store that rank 0 has opened."""

    trial: int
    attempt: int
    host: str
    port: int


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The reply to a :class:`Reported` that is awaited; every rank waits for it at that step."""

    trial: int
    attempt: int
    stop: bool


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """The reply to a :class:`Checkpointed`: the journal has it, and the states ``discard`` may be removed."""

    trial: int
    attempt: int
    discard: tuple[str, ...] = ()


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """Wait in the next report and send the number of reports, so that all ranks stop at the same one."""

    trial: int
    attempt: int
    reason: StopReason = StopReason.RUN_ENDED


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End this attempt at its next report, or in the one with number ``at``; kill it if it does not."""

    trial: int
    attempt: int
    at: int | None = None
    reason: StopReason = StopReason.RUN_ENDED


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Kill this attempt, for :attr:`StopReason.RANK_FAILED`."""

    trial: int
    attempt: int


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Find out where the processes of this attempt are, because another rank is silent and may wait for them."""

    trial: int
    attempt: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the worker."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The driver rejects this peer, and why."""

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
    | Silent
    | Finished
    | Broken
    | Goodbye
)
ToWorker = Welcome | Assign | Meet | Decided | Kept | Halt | Stop | Abort | Look | Shutdown | Refused | Beat


def awaits_answer(message: ToDriver) -> bool:
    """Return whether the worker, or the trial that it runs, waits for the driver's reply."""
    return message.awaiting if isinstance(message, Reported) else isinstance(message, Ready | Opened | Held | Finished)


_ENCODER = msgspec.msgpack.Encoder()
_TO_DRIVER: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_ALSO_MALFORMED = UnicodeDecodeError, RecursionError  # msgspec raises these for invalid text and deep nesting


def encode(message: ToDriver | ToWorker) -> bytes:
    """Return the message as bytes."""
    if isinstance(message, Assign):
        message = msgspec.structs.replace(message, config=_each(_form, message.config))
    return _ENCODER.encode(message)


def decode_to_driver(frame: bytes | memoryview) -> ToDriver:
    """Decode a message of a worker or child."""
    try:
        return _TO_DRIVER.decode(frame)
    except _ALSO_MALFORMED as error:
        raise msgspec.DecodeError(str(error)) from None


def foreign_hello(frame: bytes | memoryview) -> dict[str, Any] | None:
    """Return a hello in another version of the protocol as plain data; None for anything else."""
    try:
        said = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, *_ALSO_MALFORMED):
        return None
    is_hello = isinstance(said, dict) and said.get("type") == "hello" and isinstance(said.get("version"), int)
    return said if is_hello and said["version"] != PROTOCOL_VERSION else None


def decode_to_worker(frame: bytes | memoryview) -> ToWorker:
    """Decode a message of the driver."""
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
    """Return a value in the form of ``optimizers.space.scalars.to_json``, since msgpack too has no tuples."""
    if isinstance(value, tuple):
        return {"tuple": [_form(inner) for inner in value]}
    return [_form(inner) for inner in value] if isinstance(value, list) else value


def _value(form: Any) -> Any:
    if isinstance(form, dict):
        return tuple(map(_value, form["tuple"])) if form.keys() == {"tuple"} else form
    return [_value(inner) for inner in form] if isinstance(form, list) else form
