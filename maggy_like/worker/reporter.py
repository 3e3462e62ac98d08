"""What a training function holds in its hands: it reports, logs, saves and restores.

A report costs an append to a list. A service thread sends the list each interval; only at a
milestone does the trial wait for the driver's verdict.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, SupportsFloat

from maggy_like.messages import Assign, Beat, Checkpointed, Columns, Reported, ToDriver, encode
from maggy_like.worker.checkpoints import CheckpointStore


class ReportError(ValueError):
    """A report or a returned value is no measurement; raised inside the training function."""


class TrialStopped(BaseException):
    """The trial was told to stop. No ``Exception``: a bare ``except Exception`` must not eat it."""


class BudgetUsed(BaseException):
    """The trial reported past the steps that were granted. No ``Exception``, as above."""


class Reporter:
    """The training function's line to the driver. Alone (``Reporter(budget=10)``) it just keeps count.

    Args:
        budget: Steps granted: train up to this step, then return.
        store: Where checkpoints go; without one they are kept in memory.

    Attributes:
        budget: Steps granted.
        trial: Number of the trial.
        attempt: Which run of the trial this is, from 1.
        config: The configuration.

    Example:
        >>> def train(lr, reporter):
        ...     state = reporter.restore() or {"step": 0, "weight": 0.0}
        ...     for step in range(state["step"] + 1, reporter.budget + 1):
        ...         state = {"step": step, "weight": state["weight"] + lr}
        ...         reporter.checkpoint(state)
        ...         reporter.report(weight=state["weight"], step=step)
    """

    def __init__(self, budget: int = 1, *, store: CheckpointStore | None = None) -> None:
        self.budget = budget
        self.trial = 0
        self.attempt = 1
        self.config: dict[str, Any] = {}
        self._store = store or CheckpointStore(None)
        self._sender: Sender | None = None
        self._step: int | None = None
        self._objective: str | None = None
        self._milestones: tuple[int, ...] = ()
        self._checkpoint: str | None = None
        self._untold: str | None = None
        self._restored = False

    @classmethod
    def for_trial(cls, assign: Assign, store: CheckpointStore, sender: Sender) -> Reporter:
        """The reporter of one attempt in a child."""
        reporter = cls(assign.budget, store=store)
        reporter.trial = assign.trial
        reporter.attempt = assign.attempt
        reporter.config = assign.config
        reporter._objective = assign.objective
        reporter._milestones = assign.milestones
        reporter._checkpoint = assign.checkpoint
        reporter._sender = sender
        return reporter

    @property
    def objective(self) -> str | None:
        """Name of the metric that is optimised; None while nobody knows."""
        return self._objective

    def report(self, value: float | None = None, /, *, step: int | None = None, **metrics: float) -> None:
        """Report metrics at a step.

        Args:
            value: The objective, if it needs no name.
            step: Progress, rising from call to call; one past the last if not given.
            **metrics: Numbers by name (tensors of one element too); the objective among them.

        Raises:
            ReportError: The step does not rise, a value is no number, or the objective is missing.
        """
        sender = self._sender
        if sender is not None and sender.stopped:
            raise TrialStopped
        last = self._step
        if step is None:
            if last is None and self._restored:
                raise ReportError("after restore() the step is not known; name it: report(..., step=step)")
            step = (last or 0) + 1
        elif type(step) is not int:
            step = as_step(step)
        if last is not None:
            if step <= last:
                raise ReportError(f"step={step} does not come after step={last}, reported before; steps rise")
            if last >= self.budget:
                raise BudgetUsed
        if value is not None:
            metrics[self._objective or "value"] = value
        for name, number in metrics.items():
            if type(number) is not float:
                metrics[name] = as_number(f"report({name}=...)", number)
        if self._objective not in metrics:
            self._objective = pick_objective(metrics, self._objective)
        self._step = step
        if sender is not None:
            sender.buffer.append((step, metrics))
            if self._milestones and step >= self._milestones[0]:
                self._milestones = tuple(later for later in self._milestones if later > step)
                if sender.wait_for_verdict():
                    raise TrialStopped
            if self._untold is not None:
                self.tell_checkpoint()

    def log(self, *parts: object) -> None:
        """Print a line; it stands in the display and in the trial's log file."""
        print(*parts, flush=True)

    def checkpoint(self, state: Any) -> None:
        """Save ``state`` (anything that pickles), whole or not at all; only the newest are kept.

        The trial goes on from it once the next report has come, or the function has returned:
        a state whose step was never measured would leave a hole in the curve.

        Args:
            state: What :meth:`restore` shall give back: weights, optimizer state, the step.
        """
        self._checkpoint = self._untold = self._store.save(self.trial, self.attempt, state)
        if self._sender is not None:
            self._sender.send(Beat())  # saving shows that the trial goes on

    def restore(self) -> Any:
        """The newest saved state of this trial, or None if there is none."""
        if self._checkpoint is None:
            return None
        self._restored = True
        return self._store.load(self._checkpoint)

    def tell_checkpoint(self) -> None:
        """Tell the driver of the newest saved state, if it does not know. Called by the runtime."""
        if self._untold is not None and self._sender is not None:
            self._sender.flush()
            self._sender.send(Checkpointed(self.trial, self.attempt, self._step or 0, self._untold))
            self._store.told(self._sender.kept)
            self._untold = None


class Sender:
    """Carries a trial's reports to the agent. One per attempt; shared with the service thread.

    Attributes:
        buffer: Reports that were not sent yet. Appending and cutting a list are atomic, so
            ``report`` takes no lock.
        stopped: Whether the trial was told to stop.
        verdicts: The driver's answers; True stops.
        kept: The newest saved state that the driver knows of.
    """

    def __init__(self, assign: Assign, send: Any) -> None:
        self.buffer: list[tuple[int, dict[str, float]]] = []
        self.stopped = False
        self.verdicts: SimpleQueue[bool] = SimpleQueue()
        self.kept: str | None = None
        self._assign = assign
        self._send = send
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._objective = assign.objective

    def send(self, message: ToDriver) -> None:
        """Send one message now.

        Raises:
            ReportError: By a process that the trial forked: the two would tell different things.
        """
        if os.getpid() != self._process:
            raise ReportError("a process that the trial forked cannot report or save; do so in the trial's own")
        self._send(encode(message))

    def flush(self, *, awaiting: bool = False) -> None:
        """Send what is buffered."""
        with self._lock:
            while self.buffer or awaiting:
                count = max(1, 50_000 // len(self.buffer[0][1])) if self.buffer else 0  # a frame of about a megabyte
                reports = self.buffer[:count]
                del self.buffer[:count]
                columns = to_columns(reports)
                if self._objective is None:
                    self._objective = pick_objective(columns, None)
                last = awaiting and not self.buffer
                self.send(Reported(self._assign.trial, self._assign.attempt, self._objective, columns, last))
                if last:
                    break

    def wait_for_verdict(self) -> bool:
        """Send all, with the last report awaiting; True if the trial must stop."""
        self.flush(awaiting=True)
        return self.verdicts.get()


def to_columns(reports: list[tuple[int, dict[str, float]]]) -> dict[str, Columns]:
    """Reports by step, turned into steps and values by metric."""
    columns: dict[str, Columns] = {}
    for step, metrics in reports:
        for name, value in metrics.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [])
            column[0].append(step)
            column[1].append(value)
    return columns


def pick_objective(metrics: Mapping[str, object], wanted: str | None) -> str:
    """The name of the objective among ``metrics``.

    Raises:
        ReportError: It is missing, or there are several and nobody said which.
    """
    if wanted is not None:
        if wanted in metrics:
            return wanted
        given = ", ".join(sorted(metrics)) or "nothing"
        raise ReportError(f"the metric {wanted!r} is missing; given: {given}. Report it, or pass metric=NAME")
    if len(metrics) == 1:
        return next(iter(metrics))
    given = ", ".join(sorted(metrics)) or "nothing"
    raise ReportError(f"which metric is optimised? Given: {given}. Pass metric=NAME to lagom")


def as_number(what: str, value: object) -> float:
    """A metric as a float; numpy scalars and tensors of one element serve too.

    Raises:
        ReportError: It is no number.
    """
    if isinstance(value, SupportsFloat) and not isinstance(value, str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise ReportError(f"{what} must be a number, got {value!r} of type {type(value).__name__}")


def as_step(step: object) -> int:
    """A step as an int.

    Raises:
        ReportError: It is no whole number.
    """
    try:
        return operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        raise ReportError(f"step must be a whole number, got {step!r}") from None
