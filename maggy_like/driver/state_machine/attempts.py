"""How attempts change the study: measured, ended in one of five ways, and told to the reader."""

from __future__ import annotations

import math
from collections import deque

from msgspec.structs import replace

from maggy_like.driver.state_machine.commands import Append, Command, Show
from maggy_like.driver.state_machine.common_failures import CommonFailures
from maggy_like.driver.state_machine.retained_states import SavedStates
from maggy_like.driver.state_machine.workers import WorkerGroup
from maggy_like.protocol.attributes import as_attributes
from maggy_like.protocol.fields import MAX_NAMES
from maggy_like.protocol.messages import Finished, Reported
from optimizers.core.base import Decision
from optimizers.core.direction import direction_hint
from optimizers.core.events import AttemptEnded, AttemptStarted, Columns, Event, Measured
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.study import Study
from optimizers.core.trial import Curve, Failure, Trial, TrialState

MAX_NODES = 20
"""Machines that may be lost under a trial, at least, before it counts as what brings them down."""

SLOWED = "reports faster than the driver takes it in (metrics: {}), so its report() waits; report fewer, or less often"
"""The message about a trial whose reports wait, shown once a run."""


class Attempts:
    """Records what becomes of attempts. Whatever changes the study goes through :meth:`record`.

    Args:
        study: The ledger.
        max_attempts: How many attempts of a trial may fail or be lost before it fails for good.
        workers: Size of the gang. When it falls as a whole, each of its trials bears a share of the blame: it takes
            that many times as many falls to fail one.
        keep: How many saved states of an attempt to keep (see :class:`SavedStates`).
        alike: Told of all ends of the search's attempts.

    Attributes:
        retries: Trials whose attempt failed or was lost, in the order in which they shall run again.
        stop_requested: Running trials that a rule has stopped already.
        states: What of their saved states is still of use.
    """

    def __init__(self, study: Study, max_attempts: int, workers: int, keep: int, alike: CommonFailures) -> None:
        self.retries: deque[int] = deque()
        self.stop_requested: set[int] = set()
        self.states = SavedStates(study, keep)
        self.alike = alike
        self._study = study
        self._is_named = bool(study.objectives.given)
        self._max_attempts = max_attempts
        self._max_falls = max_attempts * workers
        self._began: dict[int, tuple[int, int]] = {}  # how far running trials had got when their attempt began
        self._warned: set[str] = set()
        self._traced: set[tuple[str, str, str]] = set()  # causes of failure whose traceback was shown
        self._out: list[Command] = []
        self._now = 0.0

    def begin(self, now: float) -> list[Command]:
        """Start a new list of commands; what follows is put into it."""
        self._out, self._now = [], now
        return self._out

    def record(self, event: Event) -> Decision:
        """Change the study and have the journal say so."""
        if isinstance(event, Measured):
            event = self._with_direction(event)
        self._out.append(Append(event))
        if isinstance(event, AttemptEnded) and not self._study.trials[event.trial].training:
            self.alike.take(event)
        return self.replay(event)

    def replay(self, event: Event) -> Decision:
        """Change the study as the journal says."""
        decision = self._study.apply(event)
        self.states.take(event)
        match event:
            case Measured(trial=trial):
                self._is_named = True
                if decision is Decision.STOP:
                    self.stop_requested.add(trial)
            case AttemptStarted(trial=trial):
                self._began[trial] = _reached(self._study.trials[trial])
            case AttemptEnded(trial=trial):
                if not self._study.trials[trial].training:
                    self.alike.replay(event)
                self.stop_requested.discard(trial)
                self._began.pop(trial, None)
        return decision

    def _with_direction(self, event: Measured) -> Measured:
        """A measurement that sets the direction, if it is the first to name the objective; shows a hint about it."""
        objectives = self._study.objectives
        if self._is_named:
            return event
        self._is_named = True
        direction = self._study.settled(event.objective)
        if not self._study.trials[event.trial].training:
            told = direction or objectives.directions[0]
            hint = direction_hint(event.objective, told, given=objectives.said[0] is not None)
            if hint:
                self._out.append(Show(hint))
        return Measured(event.trial, event.attempt, event.objective, event.columns, event.returned, direction)

    def measure(self, trial: Trial, message: Reported) -> None:
        """Enter measurements; a rule that stops the trial makes it stop_requested.

        An attempt that goes on from a checkpoint, or starts over, repeats steps: what it says of those is left out.
        """
        columns = message.columns
        if trial.attempt > 1:
            fresh = ((name, _fresh(trial.curves.get(name), column)) for name, column in columns.items())
            columns = {name: column for name, column in fresh if column is not None}
        if len(columns) + len(trial.curves) > MAX_NAMES:
            columns = self._bounded(trial, columns, message.objective)
        if message.slowed:
            self._warn("slowed", SLOWED.format(len(message.columns)), trial)
        if not columns:
            return
        self.record(Measured(trial.id, trial.attempt, message.objective, columns))
        if (value := trial.last_value) is not None and not math.isfinite(value):
            self._warn(f"nan-{trial.id}", f"reported {value} at step {trial.step}; it ranks worst", trial)

    def end(self, trial: Trial, group: WorkerGroup, *, is_cut: bool) -> Finished | None:
        """End an attempt as its workers did.

        Args:
            is_cut: Whether what runs now is cut off, and shall run again if the run is resumed.

        Returns:
            What rank 0 said, if the function returned.
        """
        end = group.end()
        if isinstance(end, Failure):
            self.lose(trial, group.failure or end)
        elif end.outcome == "returned":
            self.conclude(trial, end)
            return end
        elif is_cut and not group.stopping and (end.outcome != "raised" or end.kind is FailureKind.COLLECTIVE):
            self.lose(trial, Failure(FailureKind.DRIVER_LOST, "the search was stopped"))
        elif group.failure is not None:
            self.lose(trial, replace(group.failure, traceback=end.traceback))
        elif end.outcome == "raised" or (end.outcome == "died" and not group.stopping):
            kind = end.kind or FailureKind.EXCEPTION
            self.lose(trial, Failure(kind, end.message, end.traceback, tuple(end.types), end.place))
        else:
            self.stop(trial)
        return None

    def sort_retries(self, *, training: bool) -> None:
        """Leave out what does not run now: the search's trials while the training is on, and the other way round."""
        for number in list(self.retries):
            if (self._study.trials[number].training > 0) is not training:
                self.retries.remove(number)

    def conclude(self, trial: Trial, message: Finished) -> None:
        """End an attempt whose function returned."""
        self._warn_if_silent(trial)
        attributes = as_attributes(message.attributes)
        for change in self._study.conclude(trial, message.value, message.metrics, self._now, attributes):
            self.record(change)
        if trial.state is TrialState.FAILED and trial.failure is not None:
            self._show_failure(trial, trial.failure)

    def stop(self, trial: Trial) -> None:
        """End an attempt that was told to stop."""
        self.record(AttemptEnded(trial.id, trial.attempt, TrialState.STOPPED, self._now))

    def fail(self, trial: Trial, failure: Failure) -> None:
        """End a trial for good, without a usable value."""
        self.record(AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, self._now, failure=failure))
        self._show_failure(trial, failure)

    def lose(self, trial: Trial, failure: Failure) -> None:
        """End an attempt that failed or was cut off: stopped if a rule had said so, else to be run again.

        It fails for good where another attempt would be wasted: after the last of ``max_attempts``, or when this
        one got no further than the one before and failed in the same way.
        """
        if trial.id in self.stop_requested:
            self.stop(trial)
        elif failure.kind.is_final:
            self.fail(trial, failure)
        elif failure.kind.counts and trial.losses + 1 >= self._max_attempts:
            nth = f" (attempt {trial.losses + 1} of {self._max_attempts})" if self._max_attempts > 1 else ""
            self.fail(trial, replace(failure, message=failure.message + nth))
        elif (most := self._most_falls(failure)) is not None and trial.falls + 1 >= most:
            nth = f" (loss of workers {trial.falls + 1} of {most})"
            self.fail(trial, Failure(failure.kind, failure.message + nth))
        elif self._is_repeated(trial, failure):
            message = f"{failure.message} (attempt {trial.attempt}, just as the one before)"
            self.fail(trial, replace(failure, message=message))
        else:
            self.record(AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, self._now, failure=failure))
            self.retries.append(trial.id)
            self._show_loss(trial, failure)

    def _most_falls(self, failure: Failure) -> int | None:
        """How many times workers may be lost under a trial in such a way; None for one that says nothing of it."""
        if not failure.kind.is_fall:
            return None
        return max(MAX_NODES, self._max_falls) if failure.kind is FailureKind.NODE_LOST else self._max_falls

    def _show_loss(self, trial: Trial, failure: Failure) -> None:
        if failure.kind is FailureKind.NODE_LEFT:
            kept = trial.checkpoint
            way = "from the start" if kept is None else f"from its checkpoint at step {kept.step}"
            self._out.append(Show(f"attempt {trial.attempt} ended: {failure.message}; it goes on {way}", trial.id))
        elif failure.kind not in (FailureKind.DRIVER_LOST, FailureKind.STORE):  # else it is told of once for all trials
            why = "" if failure.kind is FailureKind.GANG_LOST else f": {failure.message}"  # which is told of once, too
            self._out.append(Show(f"attempt {trial.attempt} lost{why}; it will run again", trial.id))

    def _is_repeated(self, trial: Trial, failure: Failure) -> bool:
        """Whether a fault is that of the attempt before, at the same place: the next would have it too."""
        before = trial.failure  # of the attempt before, until this one has ended
        if before is None or not failure.kind.is_fault:
            return False
        return before.cause == failure.cause and _reached(trial) == self._began[trial.id]

    def _bounded(self, trial: Trial, columns: dict[str, Columns], objective: str) -> dict[str, Columns]:
        """Without the new names past the limit: one attempt is refused them, several may have others each."""
        known = {name: column for name, column in columns.items() if name in trial.curves or name == objective}
        room = max(0, MAX_NAMES - len(trial.curves.keys() | known.keys()))
        new = [name for name in columns if name not in known]
        if len(new) > room:
            self._warn(
                f"names-{trial.id}", f"reported more than {MAX_NAMES} different metrics; others are left out", trial
            )
        return known | {name: columns[name] for name in new[:room]}

    def _show_failure(self, trial: Trial, failure: Failure) -> None:
        details = failure.traceback.rstrip()
        if failure.cause in self._traced:  # a mistake in the function fails every trial in the same way
            details = ""
        self._traced.add(failure.cause)
        self._out.append(Show(f"failed: {failure.message}" + (f"\n{details}" if details else ""), trial.id))

    def _warn(self, key: str, text: str, trial: Trial) -> None:
        """Tell the reader something once."""
        if key not in self._warned:
            self._warned.add(key)
            self._out.append(Show(text, trial.id))

    def _warn_if_silent(self, trial: Trial) -> None:
        stops_early = self._study.scheduler.watches_reports or self._study.grant(trial).milestones
        if stops_early and not len(trial.curve):
            mend = "call reporter.report(...) at each step"
            self._warn(
                "silent", f"reported nothing before it returned, so it could not be stopped early; {mend}", trial
            )


def _reached(trial: Trial) -> tuple[int, int]:
    """How far a trial has got: the newest step that was measured, and that of its checkpoint."""
    return trial.step, -1 if trial.checkpoint is None else trial.checkpoint.step


def _fresh(curve: Curve | None, column: Columns) -> Columns | None:
    """The part of a column that lies past the end of its curve; None if there is none."""
    steps, values = column
    if curve is None or not len(curve) or not steps or steps[0] > curve.last_step:
        return column if steps else None
    first = next((index for index, step in enumerate(steps) if step > curve.last_step), None)
    return None if first is None else (steps[first:], values[first:])
