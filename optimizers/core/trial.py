"""One configuration's life: its state, its curves and its outcome."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from optimizers.core.curve import Curve
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.packed import NOTHING, PackedCurves
from optimizers.space.config import Config


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
        kind: What ended it (see :class:`~optimizers.core.failure_kinds.FailureKind`).
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
        value: What the trial is worth: the best value of its objective that was reported or returned. In a search
            with ``value="last"``, the newest one of its last ended attempt, or the newest of all while it runs for
            the first time. None while there is none.
        value_step: The step at which ``value`` was measured; None where the function reported nothing and only
            returned it. A returned value belongs to the last step that was reported.
        last_value: The objective's newest value: as returned, else as last reported.
        values: All objectives, in order, as of its last ended attempt; empty in a search of one.
        stop_due: Whether a rule has stopped it, and its attempt has yet to end.
        rested: Whether an attempt has ended.
        reported: The newest step that the function itself has reported; None where it has reported nothing.
        metrics: What ``train_fn`` returned beside the objective.
        attributes: What it returned that is no number: text, booleans, lists and dicts of such.
        failure: Why it failed, or why its last attempt was lost; the journal has every attempt's.
        checkpoint: The newest saved state.
        best_checkpoint: The saved state whose own step had the best value of the objective: that of ``value`` where the
            state of that step was saved. None where no state was saved at a step with a finite value.
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
        """The newest step at which the objective was measured, or the one that the trial started from."""
        return self.curve.last_step or self.start

    @property
    def carried_to(self) -> int | None:
        """The step of the budget to which the last report is carried forward, as the function had returned before it.

        The curve has it so that trials are compared at the same step, and the function has reported nothing there.
        None where the curve ends with a report, or with another value that was returned.
        """
        curve = self.curve
        if self.reported is None or curve.last_step <= self.reported:
            return None
        return curve.last_step if repr(curve.last) == repr(curve.at(self.reported)) else None  # nan is nan there

    def columns(self) -> dict[str, tuple[list[int], list[float]]]:
        """The measurements of each metric, as steps and values; a report that is :attr:`carried_to` a step is one."""
        found = {name: (list(curve.steps), list(curve.values)) for name, curve in self.curves.items() if len(curve)}
        if self.carried_to is not None:
            for column in found[self.objective or ""]:
                del column[-1]
        return found

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
        """The saved state that stands for the trial: that of its best value, or else the newest.

        Args:
            newest: Whether it is always the newest: the trial is worth its last report.
        """
        return self.checkpoint if newest else self.best_checkpoint or self.checkpoint

    @property
    def is_over(self) -> bool:
        """Whether the trial will never run again by itself (a paused one may)."""
        return self.state.is_final
