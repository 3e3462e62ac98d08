"""Events that describe past trials, for trackers that join a run later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.trial import Trial, TrialState


def history_of(trials: Iterable[Trial]) -> Iterator[Event]:
    """Yield what is known of trials, as if each had had one attempt; unknown times are 0.

    Args:
        trials: Trials; they must not change during the iteration.
    """
    for trial in trials:
        yield TrialCreated(trial.id, trial.config, trial.ask, trial.parent, trial.training, trial.repeat)
        if not trial.attempt:
            continue
        worker, started = trial.worker or 0, trial.started or 0.0
        yield AttemptStarted(trial.id, trial.attempt, worker, trial.budget, started, trial.config)
        if columns := trial.columns():
            yield Measured(trial.id, trial.attempt, trial.objective or next(iter(columns)), columns)
        if trial.state is not TrialState.RUNNING:
            yield AttemptEnded(
                trial.id,
                trial.attempt,
                trial.state,
                started,
                trial.value,
                dict(trial.metrics),
                trial.failure,
                dict(trial.attributes),
                config=trial.config,
            )
