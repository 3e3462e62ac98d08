"""What a damaged journal has lost, inferred from what is left of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maggy_like.errors import JournalError
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState

UNKNOWN_WORKER = -1
"""The worker of an attempt whose start was lost."""


class Repairer:
    """Makes a sequence with gaps one that a study can take in.

    A lost creation is made anew from the start of any attempt of that trial, which says all that it did. A
    lost start is inferred from what its attempt did next, with the steps that the scheduler grants; a lost
    end from the start of a later attempt. A trial that has no later attempt counts as running. Lost
    measurements and checkpoints are lost.

    Args:
        study: It must take in each event of :meth:`events` before the next is asked for.
        kept: The events that are whole, in order.
        taken: How many of them, all before the first damage, the study has taken in already.

    Attributes:
        inferred: What was inferred, a sentence each.
    """

    def __init__(self, study: Study, kept: Sequence[Event], taken: int = 0) -> None:
        self.inferred: list[str] = []
        self._study = study
        self._kept = kept
        self._taken = taken
        self._now = 0.0  # the newest time in the journal
        self._births: dict[int, TrialCreated] = {}
        for event in kept:
            if isinstance(event, TrialCreated):
                self._births[event.trial] = event
            elif isinstance(event, AttemptStarted):
                birth = TrialCreated(event.trial, event.config, event.ask, event.parent, event.training)
                self._births.setdefault(event.trial, birth)

    def events(self) -> Iterator[Event]:
        """The events behind those that were taken in, and before each what must have come before it.

        Raises:
            JournalError: A trial is known by its number alone.
        """
        for number, event in enumerate(self._kept):
            if isinstance(event, AttemptStarted | AttemptEnded):
                self._now = max(self._now, event.time)
            if number < self._taken:
                continue
            yield from self._create_up_to(event)
            if isinstance(event, AttemptStarted):
                yield from self._end_before(event.trial, event.attempt, event.budget)
            elif not isinstance(event, TrialCreated):
                yield from self._end_before(event.trial, event.attempt, None)
                trial = self._study.trials[event.trial]
                if trial.state is not TrialState.RUNNING:
                    yield self._start(trial)
            yield event

    def _create_up_to(self, event: Event) -> Iterator[Event]:
        last = event.trial - 1 if isinstance(event, TrialCreated) else event.trial
        for number in range(len(self._study.trials), last + 1):
            if number not in self._births:
                raise JournalError(
                    f"the journal has lost trial {number}: its creation and the starts of all its attempts are "
                    "damaged, so its configuration is not known; put a copy of one of those lines back, or start "
                    "another run"
                )
            self.inferred.append(f"trial {number}: its creation was inferred")
            yield self._births[number]

    def _end_before(self, number: int, attempt: int, budget: int | None) -> Iterator[Event]:
        """Bring a trial to where ``attempt`` may start, or has been started.

        Args:
            budget: The steps of that attempt, if they are known.
        """
        trial = self._study.trials[number]
        while trial.attempt < attempt:
            if trial.state is TrialState.RUNNING:
                yield self._end(trial, budget)
            elif trial.attempt == attempt - 1:
                return
            else:
                yield self._start(trial)

    def _start(self, trial: Trial) -> Event:
        self.inferred.append(f"trial {trial.id}: the start of attempt {trial.attempt + 1} was inferred")
        return self._study.started(trial, UNKNOWN_WORKER, self._now)

    def _end(self, trial: Trial, budget: int | None) -> Event:
        """The end of an attempt that another one followed: it rested if it had done, or was then granted, more."""
        is_done = trial.step >= trial.budget if budget is None else budget > trial.budget
        if is_done and not self._study.is_final(trial):
            self.inferred.append(f"trial {trial.id}: that attempt {trial.attempt} paused was inferred")
            return AttemptEnded(trial.id, trial.attempt, TrialState.PAUSED, self._now, trial.last_value)
        self.inferred.append(f"trial {trial.id}: that attempt {trial.attempt} was lost was inferred")
        failure = Failure(FailureKind.DRIVER_LOST, "how the attempt ended was lost with a damaged line of the journal")
        return AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, self._now, failure=failure)
