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
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from optimizers.checks import no_attribute
from optimizers.space import Config


class FailureKind(enum.StrEnum):
    """What ended an attempt without a usable value.

    The first kinds are faults of the trial, reported by its worker. The last ones are those of the platform.
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
    """It reported something that is not a measurement, or saved something that cannot be saved."""
    COLLECTIVE = "collective"
    """A collective operation failed, for example because a rank was lost."""
    NO_VALUE = "no_value"
    """It neither returned nor reported a number."""
    STORE = "store"
    """The store refused to save or restore a state."""
    WORKER_LOST = "worker_lost"
    """Its worker was lost for an unknown reason."""
    STAGE_LOST = "stage_lost"
    """All workers of a barrier stage were lost together, whichever of them failed first."""
    NODE_LOST = "node_lost"
    """The cluster probably removed its machine."""
    NODE_LEFT = "node_left"
    """It was ended before the cluster removed its machine, as announced."""
    DRIVER_LOST = "driver_lost"
    """The driver failed, or ended the search, while it ran."""

    @classmethod
    def _missing_(cls, value: object) -> FailureKind | None:
        return cls.STAGE_LOST if value == "gang_lost" else None  # its name in journals before 0.1.0

    @property
    def counts(self) -> bool:
        """Whether it counts towards ``max_attempts``."""
        return self not in _UNCOUNTED

    @property
    def is_fault(self) -> bool:
        """Whether the trial may be to blame. After any other kind, a retry may well succeed."""
        return self.counts and self is not FailureKind.WORKER_LOST

    @property
    def is_final(self) -> bool:
        """Whether a retry would fail in the same way."""
        return self in (FailureKind.REPORT, FailureKind.NO_VALUE)

    @property
    def is_stage_loss(self) -> bool:
        """Whether workers were lost for a reason that the trial may or may not have caused."""
        return self in (FailureKind.STAGE_LOST, FailureKind.NODE_LOST)

    @property
    def is_drivers(self) -> bool:
        """Whether only the driver may record it."""
        return self in _DRIVERS


_DRIVERS = frozenset(
    {
        FailureKind.WORKER_LOST,
        FailureKind.STAGE_LOST,
        FailureKind.NODE_LOST,
        FailureKind.NODE_LEFT,
        FailureKind.DRIVER_LOST,
    }
)
_UNCOUNTED = _DRIVERS - {FailureKind.WORKER_LOST} | {FailureKind.STORE}


class Curve(msgspec.Struct, gc=False):
    """One metric over steps, stored in columns (16 bytes per measurement)."""

    steps: array[int] = msgspec.field(default_factory=lambda: array("q"))
    values: array[float] = msgspec.field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last_step(self) -> int:
        """The newest step, or 0 if there is none."""
        return self.steps[-1] if self.steps else 0

    @property
    def last(self) -> float | None:
        """The newest value, or None if there is none."""
        return self.values[-1] if self.values else None

    def at(self, step: int) -> float | None:
        """Return the value at a step, or None if nothing was measured there."""
        index = bisect_left(self.steps, step)
        return self.values[index] if index < len(self) and self.steps[index] == step else None

    def extend(self, steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
        """Append the measurements past the last step, and return them.

        An attempt that starts over repeats steps; the first value of each step is kept.
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
    return len(steps) == 1 or all(map(operator.lt, steps, islice(steps, 1, None)))


LONGEST = 128
"""Maximum number of measurements of a trial whose curves are packed: each access to a packed curve copies it."""

_WORD = 8
"""Bytes per step, and per value."""

V = TypeVar("V")


class _MappingStruct(msgspec.StructMeta, ABCMeta):
    """Makes a struct a mapping."""


class _Packed(msgspec.Struct, Mapping[str, V], metaclass=_MappingStruct, frozen=True, eq=False, gc=False):
    """An immutable mapping whose names are shared by many mappings."""

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
    """Numbers by name: a single one as it is, several as bytes."""

    _data: float | bytes

    @classmethod
    def of(cls, values: Mapping[str, float], names: tuple[str, ...]) -> PackedValues:
        if len(names) == 1:
            return cls(names, values[names[0]])
        return cls(names, array("d", values.values()).tobytes())

    def __getitem__(self, name: str) -> float:
        start = _WORD * self._place(name)
        return _floats(self._data[start : start + _WORD])[0] if isinstance(self._data, bytes) else self._data


class PackedCurves(_Packed[Curve], frozen=True):
    """Curves by name: their lengths, then the steps and values of each."""

    _data: bytes

    @classmethod
    def of(cls, curves: Mapping[str, Curve], names: tuple[str, ...]) -> PackedCurves:
        lengths = array("q")
        parts: list[array[int] | array[float]] = [lengths]
        for curve in curves.values():
            lengths.append(len(curve.steps))
            parts.append(curve.steps)
            parts.append(curve.values)
        return cls(names, b"".join(parts))

    def opened(self) -> dict[str, Curve]:
        """Return the curves in a dict, where they can be extended."""
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
    """An empty dict that rejects changes, because all trials share it."""

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
    """The state of a trial.

    ``PENDING -> RUNNING -> COMPLETED | STOPPED | FAILED``, with ways back: ``RUNNING -> PAUSED -> RUNNING``
    (promotion), ``RUNNING -> PENDING`` (an attempt failed or was lost and is retried), and ``FAILED -> RUNNING`` (a
    resumed search retries identical failures).
    """

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether a trial in this state is never resumed by itself. A paused one may be."""
        return self in (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt ended without a usable value.

    Attributes:
        kind: What ended it (see :class:`~optimizers.core.trial.FailureKind`).
        message: One line for people.
        traceback: The Python traceback, or the last lines of output; may be empty.
        types: For an exception, the names of its class and of the base classes.
        place: For an exception, the line of the user's code that raised it, as ``file:function:line``.
    """

    kind: FailureKind
    message: str
    traceback: str = ""
    types: tuple[str, ...] = ()
    place: str = ""

    @property
    def cause(self) -> tuple[FailureKind, str, str]:
        """What identical failures have in common: no messages, because they contain addresses, numbers and paths."""
        return self.kind, self.types[0] if self.types else "", self.place

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n{self.traceback}".rstrip()


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint of a trial: its step, and its name in the run's store."""

    step: int
    name: str


class Repeat(msgspec.Struct, frozen=True, array_like=True):
    """A training that repeats a trial of the search with another seed, to confirm its value.

    Attributes:
        of: Number of the repeated trial.
        number: Number of the repeat, from 0. Repeats of the same number share a seed.
        top: Number of trials that are repeated.
        repeats: Maximum number of repeats of each.
    """

    of: int
    number: int
    top: int
    repeats: int


_NO_CURVE = Curve()


_ELSEWHERE = {
    **dict.fromkeys(("suggest_categorical", "suggest_float", "suggest_int"), "config[name]"),
    "duration": "seconds",
    "error": "failure",
    "intermediate_values": "curve",
    "last_step": "step",
    "loss": "value",
    "metric": "value, or metrics",
    "number": "id",
    "params": "config",
    "score": "value",
    "traceback": "failure.traceback",
    "user_attrs": "attributes",
}
"""What other libraries call the attributes of a trial."""


class Trial(msgspec.Struct, gc=False):
    """One configuration and everything that is known about it.

    The study keeps all trials. Nothing in a trial refers back to it, so the garbage collector need not look at them.

    Attributes:
        id: Number of the trial, from 0, in order of creation.
        config: Parameter values.
        state: Current state.
        attempt: Number of the current or last attempt, from 1; 0 before the first.
        budget: Steps granted to the current or last attempt.
        curves: Reported metrics by name. Short curves are packed while no attempt runs.
        objective: Name of the metric that is optimized, once known.
        value: The trial's value: the best reported value of its objective. With ``value="last"``, the newest value when
            it last paused or ended, or the newest report during its first attempt. If nothing was reported, a returned
            value. None if there is none.
        value_step: Step at which ``value`` was reported. None for a returned value.
        last_value: Newest value of the objective: the returned one, or else the last report.
        returned_at: Step of the budget, if the last attempt returned before reaching it; 0 otherwise, and while it
            runs.
        values: All objectives, in order, of its last ended attempt. Empty if there is one objective.
        stop_due: Whether a rule has stopped it, but its attempt has not ended yet.
        rested: Whether an attempt has ended. A lost one that is retried does not count.
        reported: Newest step that the function has reported; None if it has reported nothing.
        metrics: Other metrics that ``train_fn`` returned.
        attributes: Values other than metrics that the function kept or returned: text, booleans, and lists and dicts.
        failure: Why it failed, or why its last attempt was lost. The journal has the failures of all attempts.
        checkpoint: Newest checkpoint.
        best_checkpoint: Checkpoint whose step had the best value of the objective; the newest one if the best value
            was returned. None if no state was saved with a finite value.
        rest: State that another trial may start from: the newest one when this trial last paused, or when it ended if
            it never paused. Unlike ``checkpoint``, it stays in the store while the trial runs.
        ask: Number of the optimizer's proposal; None for a point given by the user.
        parent: Trial whose ``rest`` (or, for a training, ``checkpoint``) this one started from, if any.
        start: Step of that state, or 0.
        training: Steps of a training: a configuration that runs outside the search, and is neither ranked nor observed.
            0 for a configuration of the search.
        repeat: Which trial of the search it repeats, if it is such a training.
        world_size: Number of workers that run its current or last attempt.
        losses: Number of attempts that failed or were lost and are retried. Losses without anyone's fault do not count.
        stage_losses: Number of retried attempts that ended because all workers of a stage, or a machine, were lost.
        worker: First worker of its current or last attempt.
        started: Start time of the current attempt, in seconds; None if it does not run.
        seconds: Running time over all attempts.
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
    repeat: Repeat | None = None
    world_size: int = 1
    losses: int = 0
    stage_losses: int = 0
    worker: int | None = None
    started: float | None = None
    seconds: float = 0.0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE)

    def __repr__(self) -> str:
        """Return the state, the value and the configuration; the other fields are attributes."""
        value = "" if self.value is None else f", {self.objective or 'value'}={self.value:.5g}"
        step = "" if self.value is None or self.value_step is None else f" at step {self.value_step}"
        return f"Trial({self.id}, {self.state.value}{value}{step}, config={self.config!r})"

    def opened_curves(self) -> dict[str, Curve]:
        """Return the curves unpacked, so that they can be extended."""
        curves = self.curves
        if not isinstance(curves, dict):
            curves = self.curves = curves.opened()
        return curves

    @property
    def is_final_training(self) -> bool:
        """Whether it is the training of one configuration on all workers: outside the search, and no repeat."""
        return self.training > 0 and self.repeat is None

    @property
    def curve(self) -> Curve:
        """Read-only curve of the objective; empty if nothing was reported."""
        return self.curves.get(self.objective or "", _NO_CURVE)

    @property
    def step(self) -> int:
        """Step that the trial has reached: its newest report, or its budget if it returned before that."""
        return self.returned_at or self.curve.last_step or self.start

    def columns(self) -> dict[str, tuple[list[int], list[float]]]:
        """Return the measurements of each metric, as steps and values."""
        return {name: (list(curve.steps), list(curve.values)) for name, curve in self.curves.items() if len(curve)}

    @property
    def attempts(self) -> int:
        """Number of attempts: one, plus each retry after a fault.

        Promotions and resumes continue a trial and do not count.
        """
        return self.losses + 1 if self.attempt else 0

    @property
    def newest(self) -> dict[str, float]:
        """Newest value of each metric: the returned one, or else the last report."""
        reported = {name: curve.values[-1] for name, curve in self.curves.items() if curve.values}
        return reported | dict(self.metrics) if self.metrics else reported

    def saved(self, *, newest: bool) -> Checkpoint | None:
        """Return the checkpoint that represents the trial: that of its value if it was saved, or else the newest.

        Args:
            newest: Whether the trial's value is its last report.
        """
        if not newest:
            return self.best_checkpoint or self.checkpoint
        # The value of a promoted trial is that of its pause, but its newest state is a later one.
        states = (self.checkpoint, self.rest, self.best_checkpoint)
        return next((it for it in states if it is not None and it.step == self.value_step), self.checkpoint)

    def other_state(self, *, newest: bool) -> Checkpoint | None:
        """Return the checkpoint that represents the trial, if it is one of another, worse report than its value.

        Args:
            newest: Whether the trial's value is its last report.
        """
        state = self.saved(newest=newest)
        if state is None or self.value is None or self.value_step in (None, state.step):
            return None
        return None if self.value == self.curve.at(state.step) or math.isnan(self.value) else state

    @property
    def saved_steps(self) -> tuple[int, ...]:
        """Steps of the checkpoints that are kept: the newest, that of the best value, and the last pause's."""
        states = (self.checkpoint, self.best_checkpoint, self.rest)
        return tuple(sorted({state.step for state in states if state is not None}))

    @property
    def is_over(self) -> bool:
        """Whether the trial is never resumed by itself. A paused one may be."""
        return self.state.is_final
