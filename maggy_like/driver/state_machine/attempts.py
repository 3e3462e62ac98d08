"""Records the measurements and ends of attempts, and the messages to the user about their failures."""

from __future__ import annotations

import math
from collections import deque

from msgspec.structs import replace

from maggy_like.driver.state_machine.commands import Append, Commands, Show, StoreReturned
from maggy_like.driver.state_machine.common_failures import CommonFailures
from maggy_like.driver.state_machine.retained_states import SavedStates
from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.driver.state_machine.workers import WorkerGroup
from maggy_like.errors import ConfigError
from maggy_like.protocol.attributes import as_attributes
from maggy_like.protocol.fields import MAX_NAMES
from maggy_like.protocol.messages import Finished, Reported
from optimizers.core.curve import Curve
from optimizers.core.direction import contradiction, direction_hint, sign_hint
from optimizers.core.events import AttemptEnded, AttemptStarted, Columns, Event, Measured
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.study import Study
from optimizers.core.trial import Failure, Trial, TrialState

MAX_NODES = 20
"""Minimum number of lost machines after which a trial fails as their likely cause."""

SLOWED = "reports faster than the driver can record (metrics: {}), so its report() waits; report fewer, or less often"
"""The message about a trial whose reports wait, shown once per run."""

_NOTHING: Columns = ([], [])


class Attempts:
    """Records attempts. Every change of the study passes through :meth:`record`.

    Args:
        study: State of the study.
        max_attempts: Number of attempts of a trial that may fail or be lost before it fails for good.
        workers: Number of workers. If all are lost at once, the trial that caused it is unknown, so a trial fails only
            after ``max_attempts`` times as many such losses as there are workers.
        keep: Number of saved states of an attempt to keep (see :class:`SavedStates`).
        alike: Counts the trials of the search that fail in the same way.
        guessed: Whether the directions of the objectives were not given.

    Attributes:
        known_until: Newest time in the journal.
        retries: Trials whose attempt failed or was lost, in the order of their retries.
        states: Saved states that are still needed.
        unclear: Error that ends the search if neither the user nor the objective's name determines its direction.
    """

    def __init__(
        self,
        study: Study,
        max_attempts: int,
        workers: int,
        keep: int,
        alike: CommonFailures,
        *,
        guessed: bool = False,
    ) -> None:
        self.retries: deque[int] = deque()
        self.known_until = 0.0
        self.states = SavedStates(study, keep)
        self.alike = alike
        self.unclear: ConfigError | None = None
        self._sign_is_known = not guessed
        self._study = study
        self._is_named = bool(study.objectives.given)
        self._max_attempts = max_attempts
        self._max_gang_losses = max_attempts * workers
        self._began: dict[int, tuple[int, int]] = {}  # how far running trials were when their attempt began
        self._warned: set[str] = set()
        self._traced: set[tuple[str, str, str]] = set()  # causes of failure whose traceback was shown

    def record(self, event: Event) -> Commands:
        """Change the study and write the event to the journal."""
        commands: Commands = []
        if isinstance(event, Measured) and not self._is_named:
            event, hint = self._with_direction(event)
            commands += hint
        if isinstance(event, AttemptEnded):
            trial = self._study.trials[event.trial]
            if not self._sign_is_known:
                commands += self._check_sign(event)
            if not trial.training:
                self.alike.take(event)
            self.replay(event)
            return [*commands, Append(event, trial.value)]
        self.replay(event)
        return [*commands, Append(event)]

    def replay(self, event: Event) -> None:
        """Change the study by an event of the journal."""
        self._study.apply(event)
        if type(event) is Measured:
            self._is_named = True
            return
        self.states.take(event)
        match event:
            case AttemptEnded():
                self.known_until = max(self.known_until, event.time)
                self._sign_is_known |= event.value is not None
                if not self._study.trials[event.trial].training:
                    self.alike.replay(event)
                self._began.pop(event.trial, None)
            case AttemptStarted():
                self.known_until = max(self.known_until, event.time)
                self._began[event.trial] = _reached(self._study.trials[event.trial])

    def _with_direction(self, event: Measured) -> tuple[Measured, list[Show]]:
        """Return the first measurement with the direction from its metric's name, and a hint about it."""
        objectives = self._study.objectives
        hints: list[Show] = []
        settled = self._study.settled(event.objective) or objectives.directions[0]
        hint = direction_hint(event.objective, settled, given=objectives.said[0] is not None)
        if hint and not self._study.trials[event.trial].training:
            hints.append(Show(hint))
        return replace(event, direction=settled), hints

    def _check_sign(self, event: AttemptEnded) -> list[Show]:
        """Return a hint if the first result of the search looks like a negated loss."""
        trial, objectives = self._study.trials[event.trial], self._study.objectives
        if event.value is None or trial.training:
            return []
        names = objectives.given or (trial.objective or "value",)
        hints = []
        for number, (name, direction) in enumerate(zip(names, objectives.directions, strict=True)):
            final = event.value if number == 0 else event.metrics.get(name)
            values = [*(trial.curves[name].values if name in trial.curves else ()), *([] if final is None else [final])]
            hints.append(sign_hint(name, direction, values))
        return [Show(hint) for hint in filter(None, hints)]

    def _is_unclear(self, trial: Trial, objective: str) -> bool:
        """Whether a first measurement leaves the direction of the search open, so that it must end."""
        if self._study.objectives.is_open and not trial.training and (message := contradiction(objective)):
            self.unclear = ConfigError(f"{message}. Then use resume=True, or start another run")
        return self.unclear is not None

    def measure(self, trial: Trial, message: Reported) -> Commands:
        """Record measurements, after which a rule may stop the trial (see :attr:`Trial.stop_due`).

        An attempt that continues from a checkpoint, or starts again, repeats steps, whose measurements are left out.
        """
        commands: Commands = []
        if self._is_unclear(trial, message.objective):
            return commands
        columns = message.columns
        if trial.attempt > 1 and trial.reported is not None:
            fresh = ((name, _fresh(trial.curves.get(name), column)) for name, column in columns.items())
            columns = {name: column for name, column in fresh if column is not None}
        if len(columns) + len(trial.curves) > MAX_NAMES:
            columns, warnings = self._bounded(trial, columns, message.objective)
            commands += warnings
        if message.slowed:
            commands += self._warn("slowed", SLOWED.format(len(message.columns)), trial)
        if not columns:
            return commands
        commands += self.record(Measured(trial.id, trial.attempt, message.objective, columns))
        steps, values = columns.get(message.objective, _NOTHING)
        if not all(map(math.isfinite, values)):
            step, value = next(each for each in zip(steps, values, strict=True) if not math.isfinite(each[1]))
            commands += self._warn(f"nan-{trial.id}", f"reported {value} at step {step}; it ranks worst", trial)
        return commands

    def end(self, trial: Trial, group: WorkerGroup, now: float) -> Commands:
        """End an attempt as its workers did, and as the driver had decided (see :class:`Stopping`)."""
        end = group.end()
        if isinstance(end, Failure):
            return self.lose(trial, group.failure or end, now, group.cause)
        if end.outcome == "returned":
            return self.conclude(trial, end, now)
        if group.stopping is Stopping.CUT and (end.outcome != "raised" or end.kind is FailureKind.COLLECTIVE):
            return self.lose(trial, Failure(FailureKind.DRIVER_LOST, "the search was stopped"), now, group.cause)
        if group.failure is not None:
            return self.lose(trial, replace(group.failure, traceback=end.traceback), now)
        if end.outcome == "raised" or (end.outcome == "died" and not group.stopping.asks_to_end):
            kind = end.kind or FailureKind.EXCEPTION
            return self.lose(trial, Failure(kind, end.message, end.traceback, tuple(end.types), end.place), now)
        return self.stop(trial, now)

    def sort_retries(self, *, training: bool) -> None:
        """Keep the retries of the training while it runs, or else those of the search."""
        for number in list(self.retries):
            if (self._study.trials[number].training > 0) is not training:
                self.retries.remove(number)

    def conclude(self, trial: Trial, message: Finished, now: float) -> Commands:
        """End an attempt whose function returned."""
        commands = self._warn_if_silent(trial) + self._warn_if_uncounted(trial, message.value)
        if message.cut_at is not None:
            commands += self._warn_of_cut(trial, message.cut_at)
        if trial.training and not message.stored:
            commands.append(StoreReturned(message.returned))
        attributes = as_attributes(message.attributes)
        changes = self._study.conclude(trial, message.value, message.metrics, now, attributes)
        named = (change.objective for change in changes if isinstance(change, Measured))
        if not trial.training and (self.unclear or any(self._is_unclear(trial, name) for name in named)):
            return self.lose(trial, Failure(FailureKind.DRIVER_LOST, "the search was stopped"), now)
        for change in changes:
            commands += self.record(change)
        if trial.state is TrialState.FAILED and trial.failure is not None:
            commands += self._show_failure(trial, trial.failure)
        return commands

    def stop(self, trial: Trial, now: float) -> Commands:
        """End an attempt that was stopped."""
        cause = f"stopped by a rule at step {trial.step}" if trial.stop_due else ""
        return self.record(AttemptEnded(trial.id, trial.attempt, TrialState.STOPPED, now, cause=cause))

    def fail(self, trial: Trial, failure: Failure, now: float) -> Commands:
        """End a trial for good, without a usable value."""
        ended = AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)
        return [*self.record(ended), *self._show_failure(trial, failure)]

    def lose(self, trial: Trial, failure: Failure, now: float, cause: str = "") -> Commands:
        """End an attempt that failed or was interrupted: its trial stops if a rule had decided so, or else is retried.

        The trial fails for good if a retry would be wasted: after the last of ``max_attempts``, or if this attempt got
        no further than the one before and failed in the same way.

        Args:
            cause: Cause of the failure, if it is not part of it.
        """
        if trial.stop_due:
            return self.stop(trial, now)
        if failure.kind.is_final:
            return self.fail(trial, failure, now)
        if failure.kind.counts and trial.losses + 1 >= self._max_attempts:
            nth = f" (attempt {trial.losses + 1} of {self._max_attempts})" if self._max_attempts > 1 else ""
            return self.fail(trial, replace(failure, message=failure.message + nth), now)
        if (most := self._most_gang_losses(failure)) is not None and trial.gang_losses + 1 >= most:
            nth = f" (loss of workers {trial.gang_losses + 1} of {most})"
            return self.fail(trial, Failure(failure.kind, failure.message + nth), now)
        if self._is_repeated(trial, failure):
            message = f"{failure.message} (attempt {trial.attempt}, just as the one before)"
            return self.fail(trial, replace(failure, message=message), now)
        ended = AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, now, failure=failure, cause=cause)
        commands = self.record(ended)
        self.retries.append(trial.id)
        return [*commands, *_show_loss(trial, failure)]

    def lose_with_driver(self, trial: Trial, now: float) -> Commands:
        """End an attempt that ran when an earlier driver ended; the time since then does not count."""
        ended = min(now, max(self.known_until, trial.started or 0.0))
        return self.lose(trial, Failure(FailureKind.DRIVER_LOST, "the driver ended while the trial ran"), ended)

    def _most_gang_losses(self, failure: Failure) -> int | None:
        """Return how many losses of this kind fail a trial; None if it is not a loss of workers or machines."""
        if not failure.kind.is_gang_loss:
            return None
        return max(MAX_NODES, self._max_gang_losses) if failure.kind is FailureKind.NODE_LOST else self._max_gang_losses

    def _is_repeated(self, trial: Trial, failure: Failure) -> bool:
        """Whether the attempt before had the same fault, and this one got no further: a retry would fail too."""
        before = trial.failure  # of the attempt before, until this one has ended
        if before is None or not failure.kind.is_fault:
            return False
        return before.cause == failure.cause and _reached(trial) == self._began[trial.id]

    def _bounded(
        self, trial: Trial, columns: dict[str, Columns], objective: str
    ) -> tuple[dict[str, Columns], Commands]:
        """Return the columns without new metrics above the limit, and a warning if there were any.

        A worker checks the limit for one attempt, and each further attempt may have other metrics.
        """
        warnings: Commands = []
        known = {name: column for name, column in columns.items() if name in trial.curves or name == objective}
        room = max(0, MAX_NAMES - len(trial.curves.keys() | known.keys()))
        new = [name for name in columns if name not in known]
        if len(new) > room:
            text = f"reported more than {MAX_NAMES} different metrics; others are left out"
            warnings = self._warn(f"names-{trial.id}", text, trial)
        return known | {name: columns[name] for name in new[:room]}, warnings

    def _show_failure(self, trial: Trial, failure: Failure) -> Commands:
        details = failure.traceback.rstrip()
        # A mistake in the function fails every trial identically; and the error that ends a training has its traceback.
        if trial.training or failure.cause in self._traced:
            details = ""
        self._traced.add(failure.cause)
        return [Show(f"failed: {failure.message}" + (f"\n{details}" if details else ""), trial.id)]

    def _warn(self, key: str, text: str, trial: Trial) -> Commands:
        """Show a warning to the user, once for each ``key``."""
        if key in self._warned:
            return []
        self._warned.add(key)
        return [Show(text, trial.id)]

    def _warn_if_silent(self, trial: Trial) -> Commands:
        stops_early = self._study.scheduler.watches_reports or self._study.grant(trial).milestones
        if not stops_early or len(trial.curve):
            return []
        text = "reported nothing before it returned, so it could not be stopped early"
        return self._warn("silent", f"{text}; call reporter.report(...) at each step", trial)

    def _warn_of_cut(self, trial: Trial, step: int) -> Commands:
        problem = self._study.problem
        option = "max_budget" if problem.n_trials != 0 else "budget"
        whole = f", and {option}={problem.max_budget}" if trial.budget != problem.max_budget else f" ({option})"
        steps = f"{trial.budget} step{'s' * (trial.budget > 1)}"
        text = (
            f"reported step {step} with a budget of {steps}{whole}, which ended the function at that report; loop up "
            f"to reporter.budget, or use a larger {option}"
        )
        return self._warn("cut", text, trial)

    def _warn_if_uncounted(self, trial: Trial, value: float | None) -> Commands:
        if value is None or trial.training or trial.reported is None or self._study.worth == "last":
            return []
        if value in trial.curve.values or not math.isfinite(value):
            return []
        text = f"returned {value:g} without reporting it; the trial's value is its best report, so report it as well"
        return self._warn("uncounted", text, trial)


def _reached(trial: Trial) -> tuple[int, int]:
    """Return how far a trial is: the newest measured step, and that of its checkpoint."""
    return trial.step, -1 if trial.checkpoint is None else trial.checkpoint.step


def _show_loss(trial: Trial, failure: Failure) -> list[Show]:
    """Return the line about an attempt that is retried; none if one line covers all trials."""
    if failure.kind is FailureKind.NODE_LEFT:
        kept = trial.checkpoint
        way = "from the start" if kept is None else f"from its checkpoint at step {kept.step}"
        return [Show(f"attempt {trial.attempt} ended: {failure.message}; the trial continues {way}", trial.id)]
    if failure.kind in (FailureKind.DRIVER_LOST, FailureKind.STORE):
        return []
    why = "" if failure.kind is FailureKind.GANG_LOST else f": {failure.message}"  # which is shown once for all
    return [Show(f"attempt {trial.attempt} lost{why}; the trial will be retried", trial.id)]


def _fresh(curve: Curve | None, column: Columns) -> Columns | None:
    """Return the part of a column after the end of its curve; None if there is none."""
    steps, values = column
    if curve is None or not len(curve) or not steps or steps[0] > curve.last_step:
        return column if steps else None
    first = next((index for index, step in enumerate(steps) if step > curve.last_step), None)
    return None if first is None else (steps[first:], values[first:])
