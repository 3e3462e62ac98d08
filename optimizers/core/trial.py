"""One configuration's life: its state, its failures, its curves and its outcome."""

from __future__ import annotations

import enum
import math
import operator
from abc import ABCMeta
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn, TypeVar

import msgspec

from optimizers.space import Config


class FailureKind(enum.StrEnum):
    """What ended an attempt without a usable value.

    The first ones are faults of the trial, as its worker tells of them; the last ones are the platform's.
    """

    EXCEPTION = "exception"
    """The training function raised."""
    EXIT = "exit"
    """Its process exited, or it called ``sys.exit``."""
    SIGNAL = "signal"
    """Its process was killed by a signal."""
    OOM = "oom"
    """It ran out of memory, and the kernel killed it."""
    TIMEOUT = "timeout"
    """It took longer than ``trial_timeout``, or reported nothing for ``report_timeout``."""
    DISCONNECTED = "disconnected"
    """Its process closed its connection to the agent."""
    TOO_LARGE = "too_large"
    """It sent a message past the limit."""
    REPORT = "report"
    """It reported what is no measurement, or saved what cannot be saved."""
    COLLECTIVE = "collective"
    """An operation of all ranks failed, as it does when one of them is gone."""
    NO_VALUE = "no_value"
    """It returned no number and reported none."""
    STORE = "store"
    """The store refused to save or restore a state."""
    WORKER_LOST = "worker_lost"
    """Its worker was lost, and nobody knows why."""
    GANG_LOST = "gang_lost"
    """The whole gang was lost, whichever worker brought it down."""
    NODE_LOST = "node_lost"
    """The cluster took its machine away, as far as anybody knows."""
    NODE_LEFT = "node_left"
    """It was ended before its machine was taken away, as the cluster had announced."""
    DRIVER_LOST = "driver_lost"
    """The driver went down, or ended the search, while it ran."""

    @property
    def counts(self) -> bool:
        """Whether it counts towards ``max_attempts``."""
        return self not in _UNCOUNTED

    @property
    def is_fault(self) -> bool:
        """Whether it says something of the trial; after any other, the next attempt may well succeed."""
        return self.counts and self is not FailureKind.WORKER_LOST

    @property
    def is_final(self) -> bool:
        """Whether another attempt could only end in the same way."""
        return self in (FailureKind.REPORT, FailureKind.NO_VALUE)

    @property
    def is_gang_loss(self) -> bool:
        """Whether workers were lost under the trial in a way that it may, or may not, have brought about."""
        return self in (FailureKind.GANG_LOST, FailureKind.NODE_LOST)

    @property
    def is_drivers(self) -> bool:
        """Whether only the driver may record it, and no worker may tell of it."""
        return self in _DRIVERS


_DRIVERS = frozenset(
    {
        FailureKind.WORKER_LOST,
        FailureKind.GANG_LOST,
        FailureKind.NODE_LOST,
        FailureKind.NODE_LEFT,
        FailureKind.DRIVER_LOST,
    }
)
_UNCOUNTED = _DRIVERS - {FailureKind.WORKER_LOST} | {FailureKind.STORE}


class Curve(msgspec.Struct, gc=False):
    """One metric over steps, in columns (16 bytes a measurement)."""

    steps: array[int] = msgspec.field(default_factory=lambda: array("q"))
    values: array[float] = msgspec.field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last_step(self) -> int:
        """The newest step, or 0 while there is none."""
        return self.steps[-1] if self.steps else 0

    @property
    def last(self) -> float | None:
        """The newest value, or None while there is none."""
        return self.values[-1] if self.values else None

    def at(self, step: int) -> float | None:
        """The value at a step; None where nothing was measured."""
        index = bisect_left(self.steps, step)
        return self.values[index] if index < len(self) and self.steps[index] == step else None

    def extend(self, steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
        """Append the measurements whose step lies past the last one; what was appended.

        A later attempt that starts over repeats steps; the ledger keeps the first word on each.
        """
        known = self.steps
        if len(steps) == len(values) and steps and (not known or steps[0] > known[-1]) and _rise(steps):
            known.fromlist(steps)
            self.values.fromlist(values)
            return steps, values
        last = known[-1] if known else -math.inf
        fresh: tuple[list[int], list[float]] = [], []
        for step, value in zip(steps, values, strict=True):
            if step > last:
                fresh[0].append(step)
                fresh[1].append(value)
                last = step
        known.fromlist(fresh[0])
        self.values.fromlist(fresh[1])
        return fresh


def _rise(steps: list[int]) -> bool:
    """Whether each step comes after the one before."""
    return len(steps) == 1 or all(map(operator.lt, steps, islice(steps, 1, None)))


LONGEST = 128
"""Measurements up to which the curves of a trial are packed: each look at a curve makes a copy of it then."""

_WORD = 8
"""Bytes of a step, and of a value."""

V = TypeVar("V")


class _MappingStruct(msgspec.StructMeta, ABCMeta):
    """Makes a struct a mapping."""


class _Packed(msgspec.Struct, Mapping[str, V], metaclass=_MappingStruct, frozen=True, eq=False, gc=False):
    """A mapping that cannot be changed: its names, which many of them share, and what a kind of them has besides."""

    _names: tuple[str, ...]

    __eq__ = Mapping.__eq__

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _place(self, name: str) -> int:
        try:
            return self._names.index(name)
        except ValueError:
            raise KeyError(name) from None


class PackedValues(_Packed[float], frozen=True):
    """Numbers by name: one by itself, since a trial has it already, and several as bytes."""

    _data: float | bytes

    @classmethod
    def of(cls, values: Mapping[str, float], names: tuple[str, ...]) -> PackedValues:
        """Those of another mapping, whose names are ``names``."""
        if len(names) == 1:
            return cls(names, values[names[0]])
        return cls(names, array("d", values.values()).tobytes())

    def __getitem__(self, name: str) -> float:
        start = _WORD * self._place(name)
        return _floats(self._data[start : start + _WORD])[0] if isinstance(self._data, bytes) else self._data


class PackedCurves(_Packed[Curve], frozen=True):
    """Curves by name: how long each is, and then each one's steps and values."""

    _data: bytes

    @classmethod
    def of(cls, curves: Mapping[str, Curve], names: tuple[str, ...]) -> PackedCurves:
        """Those of another mapping, whose names are ``names``."""
        lengths = array("q")
        parts: list[array[int] | array[float]] = [lengths]
        for curve in curves.values():
            lengths.append(len(curve.steps))
            parts.append(curve.steps)
            parts.append(curve.values)
        return cls(names, b"".join(parts))

    def opened(self) -> dict[str, Curve]:
        """The curves in a dict, where they can be extended."""
        curves, start = {}, _WORD * len(self._names)
        for name, length in zip(self._names, _integers(self._data[:start]), strict=True):
            middle = start + _WORD * length
            end = middle + _WORD * length
            curves[name] = Curve(_integers(self._data[start:middle]), _floats(self._data[middle:end]))
            start = end
        return curves

    def __getitem__(self, name: str) -> Curve:
        place, head = self._place(name), _WORD * len(self)
        lengths = _integers(self._data[:head])
        start = head + 2 * _WORD * sum(lengths[:place])
        middle = start + _WORD * lengths[place]
        end = middle + _WORD * lengths[place]
        return Curve(_integers(self._data[start:middle]), _floats(self._data[middle:end]))


class _Nothing(dict[str, Any]):
    """An empty dict that stays empty, since all share it."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a trial's metrics and attributes cannot be changed; make a dict of them first")

    __setitem__ = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
"""No values by name."""


def _integers(data: bytes) -> array[int]:
    return array("q", data)


def _floats(data: bytes) -> array[float]:
    return array("d", data)


class TrialState(enum.StrEnum):
    """Where a trial stands.

    ``PENDING -> RUNNING -> COMPLETED | STOPPED | FAILED``, with ways back: ``RUNNING -> PAUSED ->
    RUNNING`` (promotion), ``RUNNING -> PENDING`` (an attempt failed or was lost, and another follows), and ``FAILED ->
    RUNNING`` (a resumed search tries again what failed alike).
    """

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether a trial in this state will never run again by itself (a paused one may)."""
        return self in (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt ended without a usable value.

    Attributes:
        kind: What ended it (see :class:`~optimizers.core.trial.FailureKind`).
        message: One line for people.
        traceback: The Python traceback, or the last lines of output; may be empty.
        types: Of an exception: the names of its class and of those that it is derived from.
        place: Of an exception: where in the user's code it came from, as ``file:function:line``.
    """

    kind: FailureKind
    message: str
    traceback: str = ""
    types: tuple[str, ...] = ()
    place: str = ""

    @property
    def cause(self) -> tuple[FailureKind, str, str]:
        """What failures that are alike have in common: not messages, since those hold addresses, numbers and paths."""
        return self.kind, self.types[0] if self.types else "", self.place

    def __str__(self) -> str:
        """For people: the kind and the message, and the traceback below them."""
        return f"{self.kind}: {self.message}\n{self.traceback}".rstrip()


class Checkpoint(msgspec.Struct, frozen=True):
    """A saved state of a trial: the step it was taken at, and its name in the run's store."""

    step: int
    name: str


_NO_CURVE = Curve()


class Trial(msgspec.Struct, gc=False):
    """One configuration and all that is known of it.

    A ledger keeps them all, and nothing in a trial refers back to it: so the garbage collector does not look at them.

    Attributes:
        id: Number of the trial, from 0, in order of creation.
        config: Parameter values.
        state: Where it stands.
        attempt: Number of the present or last run, from 1; 0 before the first.
        budget: Steps granted to the present or last attempt.
        curves: Reported metrics by name; short ones are packed while no attempt runs.
        objective: Name of the metric that is optimised, once known.
        value: What the trial is worth: the best value of its objective that was reported. In a search with
            ``value="last"``, the newest one as it last paused or ended, or the newest of all while it runs for the
            first time. If the function has reported nothing, a value that it returned. None while there is none.
        value_step: The step at which ``value`` was reported: the curve has it there. None for a value that was
            returned.
        last_value: The objective's newest value: as returned, else as last reported.
        returned_at: The step of the budget before whose end the last attempt returned; 0 if it reported up to the
            budget, was not ended by its function, or runs.
        values: All objectives, in order, as of its last ended attempt; empty in a search of one.
        stop_due: Whether a rule has stopped it, and its attempt has yet to end.
        rested: Whether an attempt has ended; one that was lost, and that another follows, does not count.
        reported: The newest step that the function itself has reported; None where it has reported nothing.
        metrics: What ``train_fn`` returned beside the objective.
        attributes: What it returned that is no number: text, booleans, lists and dicts of such.
        failure: Why it failed, or why its last attempt was lost; the journal has every attempt's.
        checkpoint: The newest saved state.
        best_checkpoint: The saved state whose own step had the best value of the objective: that of ``value`` where the
            state of that step was saved, or the newest as the function returned the best value. None where no state
            was saved with a finite value.
        rest: The state that another trial may start from: the newest as it last paused, or as it ended if it
            never did. Unlike ``checkpoint``, it stays in the store while the trial runs on.
        ask: Which call of the optimizer proposed it; None for a point given by the user.
        parent: The trial from whose ``rest`` this one started, if any.
        start: The step of that state, or 0.
        training: Steps of a training: a configuration that runs outside the search, as one with nothing to compete
            with. It is neither ranked nor observed. 0 for a configuration of the search.
        world_size: How many workers run its present or last attempt together.
        losses: Attempts that failed or were lost so far, and were or will be followed by another; those that
            nobody is to blame for do not count.
        gang_losses: Attempts that ended as the whole gang or a machine was lost, and that another follows or followed.
        seconds: Time spent running, over all attempts.
    """

    id: int
    config: Config
    state: TrialState = TrialState.PENDING
    attempt: int = 0
    budget: int = 0
    curves: dict[str, Curve] | PackedCurves = {}
    objective: str | None = None
    value: float | None = None
    value_step: int | None = None
    last_value: float | None = None
    returned_at: int = 0
    values: tuple[float, ...] = ()
    stop_due: bool = False
    rested: bool = False
    reported: int | None = None
    metrics: Mapping[str, float] = NOTHING
    attributes: Mapping[str, Any] = NOTHING
    failure: Failure | None = None
    checkpoint: Checkpoint | None = None
    best_checkpoint: Checkpoint | None = None
    rest: Checkpoint | None = None
    ask: int | None = None
    parent: int | None = None
    start: int = 0
    training: int = 0
    world_size: int = 1
    losses: int = 0
    gang_losses: int = 0
    worker: int | None = None
    started: float | None = None
    seconds: float = 0.0

    def opened_curves(self) -> dict[str, Curve]:
        """The curves, packed no more: they can be extended."""
        curves = self.curves
        if not isinstance(curves, dict):
            curves = self.curves = curves.opened()
        return curves

    @property
    def curve(self) -> Curve:
        """The objective's curve, to be read alone; empty while nothing was reported."""
        return self.curves.get(self.objective or "", _NO_CURVE)

    @property
    def step(self) -> int:
        """The step that the trial has reached: that of its newest report, or of the budget if it returned before it."""
        return self.returned_at or self.curve.last_step or self.start

    def columns(self) -> dict[str, tuple[list[int], list[float]]]:
        """The measurements of each metric, as steps and values."""
        return {name: (list(curve.steps), list(curve.values)) for name, curve in self.curves.items() if len(curve)}

    @property
    def attempts(self) -> int:
        """How often it was begun: 1, and one more for each time that a fault ended an attempt and another followed.

        Neither a promotion nor a resume counts: the trial goes on where it was.
        """
        return self.losses + 1 if self.attempt else 0

    @property
    def newest(self) -> dict[str, float]:
        """The newest value of every metric: as returned, else as last reported."""
        reported = {name: curve.values[-1] for name, curve in self.curves.items() if curve.values}
        return reported | dict(self.metrics) if self.metrics else reported

    def saved(self, *, newest: bool) -> Checkpoint | None:
        """The saved state that stands for the trial: that of its value if it was saved, or else the newest.

        Args:
            newest: Whether the trial is worth its last report.
        """
        if not newest:
            return self.best_checkpoint or self.checkpoint
        # A trial that runs again is worth what it was as it paused, and its newest state is a later one.
        states = (self.checkpoint, self.rest, self.best_checkpoint)
        return next((it for it in states if it is not None and it.step == self.value_step), self.checkpoint)

    @property
    def is_over(self) -> bool:
        """Whether the trial will never run again by itself (a paused one may)."""
        return self.state.is_final
