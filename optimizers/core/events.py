"""The events of a study: what the journal holds, and all that changes the ledger.

Each event is a plain record with a JSON form (one line in the journal). JSON has no NaN or
infinity, so non-finite values travel as the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import math
from typing import Any, final

import msgspec

from optimizers.core.direction import Direction
from optimizers.core.trial import Failure, TrialState
from optimizers.space import Config
from optimizers.space.scalars import from_json as from_form
from optimizers.space.scalars import to_json as to_form

Columns = tuple[list[int], list[float]]
"""Steps and values of one metric, in order of step."""


@final
class TrialCreated(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="created"):
    """A configuration entered the study.

    Attributes:
        trial: The trial's number.
        config: Its parameter values.
        ask: Which call of the optimizer proposed it; None for a point given by the user.
        parent: The trial from whose state at rest it starts, if any.
        training: Of a training (see :attr:`Trial.training`): its steps.
    """

    trial: int
    config: Config
    ask: int | None = None
    parent: int | None = None
    training: int = 0


@final
class AttemptStarted(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="started"):
    """A worker, or several together, were told to run a trial.

    It repeats what :class:`TrialCreated` says, so that a journal which lost that line has lost nothing.

    Attributes:
        worker: The first of them.
        budget: The step up to which it shall run.
        config: As the trial was created; and so ``ask``, ``parent`` and ``training``.
        world_size: How many workers run it together.
        cause: Why it runs now, where the other events do not tell.
        others: The other workers, where several run it together.
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


@final
class Measured(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="measured"):
    """Metrics of a running attempt, in columns by name.

    Attributes:
        objective: The metric in ``columns`` that is optimised.
        returned: Whether the function returned before it had reported its whole budget: the value is then that of the
            attempt, for the scheduler to compare at the step of the budget. It is not a point of the curve, unless the
            function reports nothing.
        direction: Of the objective, where nobody had said it: settled by its first measurement (see
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
    """An attempt is over.

    Attributes:
        state: What the trial is now; ``pending`` says that the attempt failed or was lost and another follows.
        value: The objective's final value, if there is one.
        metrics: The other metrics that ``train_fn`` returned.
        failure: Why, for ``failed``, ``pending`` and a ``stopped`` that a rule did not ask for.
        attributes: What ``train_fn`` returned that is no number, as plain data.
        cause: What ended it, where neither the state nor the failure tells.
        config: As the trial was created: callbacks get it. The journal has it in the events before.
    """

    trial: int
    attempt: int
    state: TrialState
    time: float
    value: float | None = None
    metrics: dict[str, float] = {}
    failure: Failure | None = None
    attributes: dict[str, Any] = {}
    cause: str = ""
    config: Config = {}


Event = TrialCreated | AttemptStarted | Measured | CheckpointSaved | AttemptEnded
"""Whatever may change a study."""


def to_json(event: Event) -> bytes:
    """One line of JSON (without the newline) that :func:`from_json` reads back exactly."""
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
    """Read an event back.

    Raises:
        msgspec.ValidationError: The line is JSON, but no event of this version.
        msgspec.DecodeError: The line is not JSON.
    """
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
    """A configuration in the form that JSON has, which :func:`config_of` reads back."""
    return {name: to_form(value) for name, value in config.items()}


def config_of(form: Config) -> Config:
    """The configuration of :func:`form_of`."""
    return {name: from_form(value) for name, value in form.items()}


def _are_finite(columns: dict[str, Columns]) -> bool:
    """Whether all values are finite; False also where their sum overflows."""
    return math.isfinite(sum([sum(values) for _, values in columns.values()]))


def strict_json(values: list[float]) -> list[Any]:
    """``values`` with every non-finite number spelled as a string."""
    if all(map(math.isfinite, values)):
        return values
    return [value if math.isfinite(value) else str(value) for value in values]


_NESTED = frozenset((dict, list))
"""Types of the values that have another form in JSON."""

# Lax decoding turns the strings of non-finite numbers back into floats.
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event, strict=False)
