"""The repair of a damaged journal: its lost events are inferred from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maggy_like.errors import JournalError
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState

UNKNOWN_WORKER = -1
"""The worker of an attempt whose start was lost."""


class Repairer:
    """Completes a sequence of events with gaps, so that a study accepts it.

    A lost creation is inferred from the start of any attempt of that trial, which contains the same facts. A lost start
    is inferred from the attempt's next event, with the steps that the scheduler grants. A lost end is inferred from the
    start of a later attempt; without one, the trial counts as running. Measurements and checkpoints cannot be inferred.
    """

    def __init__(self, study: Study, kept: Sequence[Event], taken: int = 0) -> None:
        self.inferred: list[str] = []  # one sentence for each inferred event
        self._study = study  # it must apply each event of :meth:`events` before the next is requested
        self._kept = kept  # the undamaged events, in order
        self._taken = taken  # the number of events, all before the first damage, that the study has applied already
        self._now = 0.0  # the newest time in the journal
        self._births: dict[int, TrialCreated] = {}
        for event in kept:
            if isinstance(event, TrialCreated):
                self._births[event.trial] = event
            elif isinstance(event, AttemptStarted):
                birth = TrialCreated(event.trial, event.config, event.ask, event.parent, event.training, event.repeat)
                self._births.setdefault(event.trial, birth)

    def events(self) -> Iterator[Event]:
        """Yield the events after those that were applied, each preceded by the events inferred from it.

        Raise JournalError if a trial cannot be inferred.
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
                    f"the journal has lost the configuration of trial {number}: its creation and the starts of all its "
                    "attempts are damaged; put a copy of one of those lines back, or start another run"
                )
            self.inferred.append(f"trial {number}: its creation was inferred")
            yield self._births[number]

    def _end_before(self, number: int, attempt: int, budget: int | None) -> Iterator[Event]:
        """Yield the events after which ``attempt``, of ``budget`` steps if known, may start or has started."""
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
        """Infer the end of an attempt that another followed: paused if its steps were done or more were granted."""
        is_done = trial.step >= trial.budget if budget is None else budget > trial.budget
        if is_done and not self._study.is_final(trial):
            self.inferred.append(f"trial {trial.id}: the pause of attempt {trial.attempt} was inferred")
            return AttemptEnded(trial.id, trial.attempt, TrialState.PAUSED, self._now, trial.last_value)
        self.inferred.append(f"trial {trial.id}: the loss of attempt {trial.attempt} was inferred")
        failure = Failure(FailureKind.DRIVER_LOST, "the end of the attempt was lost with a damaged line of the journal")
        return AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, self._now, failure=failure)
