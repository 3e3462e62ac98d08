"""The events of a study: the records of the journal, and the only way to change the study's state.

Each event has a JSON form (one line in the journal). JSON has no NaN or infinity, so values that are not finite are
stored as the texts ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import math
from typing import Any, final

import msgspec

from optimizers.core.direction import Direction
from optimizers.core.trial import Failure, Repeat, TrialState
from optimizers.space import Config
from optimizers.space.scalars import from_json as from_form
from optimizers.space.scalars import to_json as to_form

Columns = tuple[list[int], list[float]]
"""Steps and values of one metric, in order of step."""


@final
class TrialCreated(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="created"):
    """A configuration entered the study.

    Attributes:
        trial: Number of the trial.
        config: Its parameter values.
        ask: Number of the optimizer's proposal; None for a point given by the user.
        parent: Trial whose checkpoint it starts from, if any.
        training: Steps, if it is a training (see :attr:`Trial.training`).
        repeat: Which trial it repeats, if it is a repeat.
    """

    trial: int
    config: Config
    ask: int | None = None
    parent: int | None = None
    training: int = 0
    repeat: Repeat | None = None


@final
class AttemptStarted(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="started"):
    """One or more workers were assigned a trial.

    It repeats the data of :class:`TrialCreated`, so that a journal without that line is still complete.

    Attributes:
        trial: Number of the trial.
        attempt: Number of the attempt, from 1.
        worker: The first worker.
        budget: Step up to which the attempt may run.
        time: Start time, in seconds.
        config: The trial's configuration.
        ask: As in :class:`TrialCreated`.
        parent: As in :class:`TrialCreated`.
        training: As in :class:`TrialCreated`.
        world_size: Number of workers that run it together.
        cause: Reason for the attempt, unless other events tell it.
        others: The other workers, if several run it together.
        repeat: As in :class:`TrialCreated`.
    """

    trial: int
    attempt: int
    worker: int
    budget: int
    time: float
    config: Config = {}
    ask: int | None = None
    parent: int | None = None
    training: int = 0
    world_size: int = 1
    cause: str = ""
    others: tuple[int, ...] = ()
    repeat: Repeat | None = None


@final
class Measured(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="measured"):
    """Metrics of a running attempt, in columns by name.

    Attributes:
        trial: Number of the trial.
        attempt: Number of the attempt.
        objective: Metric in ``columns`` that is optimized.
        columns: Steps and values of each metric.
        returned: Whether the function returned before it reported its whole budget. The value is then the result of the
            attempt, which the scheduler compares at the step of the budget. It is not a point of the curve, unless the
            function reports nothing.
        direction: Direction of the objective, if this first measurement settles it (see
            :class:`~optimizers.core.objectives.Objectives`).
    """

    trial: int
    attempt: int
    objective: str
    columns: dict[str, Columns]
    returned: bool = False
    direction: Direction | None = None


@final
class CheckpointSaved(msgspec.Struct, frozen=True, gc=False, tag="checkpoint"):
    """A running attempt saved its state under a name in the run's store."""

    trial: int
    attempt: int
    step: int
    name: str


@final
class AttemptEnded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="ended"):
    """An attempt has ended.

    Attributes:
        trial: Number of the trial.
        attempt: Number of the attempt.
        state: New state of the trial; ``pending`` if the attempt failed or was lost and is retried.
        time: End time, in seconds.
        value: Final value of the objective, if there is one.
        metrics: Other metrics that ``train_fn`` returned.
        failure: Reason for ``failed``, ``pending``, or a ``stopped`` that no rule asked for.
        attributes: Values other than metrics that the function kept or returned, as plain data.
        cause: Reason for the end, unless the state or the failure tells it.
        config: The trial's configuration, for callbacks. The journal has it in earlier events.
    """

    trial: int
    attempt: int
    state: TrialState
    time: float
    value: float | None = None
    metrics: dict[str, int | float] = {}
    failure: Failure | None = None
    attributes: dict[str, Any] = {}
    cause: str = ""
    config: Config = {}


Event = TrialCreated | AttemptStarted | Measured | CheckpointSaved | AttemptEnded
"""Everything that may change a study."""


def to_json(event: Event) -> bytes:
    """Return an event as one line of JSON, without the newline, that :func:`from_json` reads back exactly."""
    match event:  # the most frequent first
        case Measured(columns=columns):
            if not _are_finite(columns):
                strict = {name: (steps, strict_json(values)) for name, (steps, values) in columns.items()}
                event = msgspec.structs.replace(event, columns=strict)
        case TrialCreated(config=config) | AttemptStarted(config=config):
            event = msgspec.structs.replace(event, config=form_of(config))
        case AttemptEnded(value=value, metrics=metrics, config=config):
            event = msgspec.structs.replace(
                event,
                config=form_of(config),
                value=None if value is None else strict_json([value])[0],
                metrics=dict(zip(metrics, strict_json(list(metrics.values())), strict=True)),
            )
    return msgspec.json.encode(event)


def from_json(line: bytes) -> Event:
    """Read an event from one line of JSON."""
    event = _DECODER.decode(line)
    if (
        type(event) is Measured
        or type(event) is CheckpointSaved
        or not event.config
        or _NESTED.isdisjoint(map(type, event.config.values()))
    ):
        return event
    return msgspec.structs.replace(event, config=config_of(event.config))


def form_of(config: Config) -> Config:
    """Return a configuration in its JSON form, which :func:`config_of` reads back."""
    return {name: to_form(value) for name, value in config.items()}


def config_of(form: Config) -> Config:
    """Return the configuration of a JSON form."""
    return {name: from_form(value) for name, value in form.items()}


def _are_finite(columns: dict[str, Columns]) -> bool:
    """Return whether all values are finite. Also False if their sum overflows."""
    return math.isfinite(sum([sum(values) for _, values in columns.values()]))


def strict_json(values: list[float]) -> list[Any]:
    """Return ``values`` with each number that is not finite as a text."""
    if all(map(math.isfinite, values)):
        return values
    return [value if math.isfinite(value) else str(value) for value in values]


_NESTED = frozenset((dict, list))
"""Types of values whose JSON form differs from them."""

# Lax decoding turns the strings of non-finite numbers back into floats.
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event, strict=False)
