"""What a display shows, and the protocol of the displays.

The driver makes a :class:`Snapshot` of the study a few times per second. A display draws the newest one, and the log
lines that came since. Displays never see the live study, so they need no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import UNBOUNDED
from optimizers.core.study import Study
from optimizers.core.trial import FailureKind, Trial, TrialState
from optimizers.space import Config


class WorkerLine(msgspec.Struct, frozen=True, gc=False):
    """State of one worker.

    Attributes:
        index: Number of the worker, from 0.
        host: Name of its machine.
        state: ``joining``, ``idle``, ``busy``, ``lost`` or ``gone``.
        trial: Number of its trial, if it runs one.
        step: Newest step of the trial.
        budget: Steps granted to the trial.
        value: Newest value of the objective.
        seconds: Seconds since the attempt began.
    """

    index: int
    host: str
    state: str
    trial: int | None = None
    step: int = 0
    budget: int = 0
    value: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingLine:
    """State of the training, after a search or without one.

    Attributes:
        state: State of its trial.
        workers: Number of workers that run it together. 0 before it begins.
        step: Its newest step.
        budget: Number of its steps. 0 if not known.
        value: Newest value of the objective.
        seconds: Seconds that its attempts have run so far, including those of earlier drivers.
        others: Name and newest value of the other metrics.
    """

    state: TrialState
    workers: int
    step: int
    budget: int
    value: float | None
    seconds: float
    others: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ConfirmationLine:
    """State of the confirmation after a search.

    Attributes:
        candidates: Number of trials of the search that are repeated.
        ended: Number of repeats that have ended.
        most: Maximum number of repeats.
        leader: Trial of the search whose repeats are the best so far. None while that is unknown.
    """

    candidates: int
    ended: int
    most: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class FailureLine:
    """The trials whose last failure is of one kind.

    Attributes:
        kind: Kind of the failure, such as ``exception`` or ``timeout``.
        count: Number of trials.
        trial: The newest of them.
        message: Message of its failure, in one line.
    """

    kind: str
    count: int
    trial: int
    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The search at one moment.

    Attributes:
        name: Name of the run.
        directory: Folder of its files.
        optimizer: Name of the optimizer.
        objective: Name of the optimized metric, once known.
        direction: ``max`` or ``min``. None while it is not known.
        guessed: Whether the direction follows from the objective's name.
        others: Direction and name of all objectives except the first.
        phase: Phase of the run, or its ending.
        n_trials: Number of configurations to try. None for no limit, 0 if only a training runs.
        is_ablation: Whether trials are compared in groups, so that none of them is the best.
        resumes_all: Whether each paused trial continues, as in population-based training.
        counts: Number of trials by state. States without trials may be missing.
        pareto: Number of trials in the Pareto set. None with one objective.
        best_trial: Number of the best trial so far.
        best_value: Its value.
        best_step: The step at which the value was measured. None if it has no step.
        best_failed: Whether the trial failed after that.
        best_config: Its configuration.
        elapsed: Seconds since the call.
        timeout: Seconds that the search may take, or None.
        engine: Name of the engine that starts the workers. Empty if not known.
        n_workers: Number of workers that it starts. 0 if not known, or if workers come and go.
        imports: Packages that workers import before their first trial.
        workers: One line per worker, in order of index.
        confirmation: The confirmation, once it has begun.
        training: The training, once it is due.
        failures: Trials with a failed or lost attempt, by kind, the most frequent first. Trials that succeeded in a
            later attempt are included.
    """

    name: str
    directory: str
    optimizer: str
    direction: str | None
    phase: Phase | Ending
    elapsed: float
    objective: str | None = None
    n_trials: int | None = None
    is_ablation: bool = False
    guessed: bool = False
    resumes_all: bool = False
    counts: Mapping[TrialState, int] = field(default_factory=dict)
    others: tuple[tuple[str, str], ...] = ()
    pareto: int | None = None
    best_trial: int | None = None
    best_value: float | None = None
    best_step: int | None = None
    best_failed: bool = False
    best_config: Config | None = None
    timeout: float | None = None
    engine: str = ""
    n_workers: int = 0
    imports: tuple[str, ...] = ()
    workers: tuple[WorkerLine, ...] = ()
    confirmation: ConfirmationLine | None = None
    training: TrainingLine | None = None
    failures: tuple[FailureLine, ...] = ()


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a trial's output, or of the runtime itself (``trial`` is None).

    Attributes:
        rank: Rank of the worker that wrote it, if several run the trial.
        live: Whether the trial's next line of that rank replaces it, as in a progress bar.
    """

    trial: int | None
    text: str
    rank: int | None = None
    live: bool = False


class Display(Protocol):
    """Shows one run. All calls come from one thread, which is not the caller's.

    Attributes:
        keeps_lines: Whether log lines stay in sight after the end of the run.
        has_shown_summary: Whether the user sees how the run ended.
    """

    keeps_lines: bool
    has_shown_summary: bool

    def start(self, snapshot: Snapshot) -> None:
        """Show the first state."""

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        """Show the newest state and the log lines since the last call. Called about ten times per second."""

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        """Show the last state and release the terminal or cell."""


def failures_by_kind(trials: Iterable[Trial]) -> tuple[FailureLine, ...]:
    """Return one line per kind, the most frequent first, including trials that succeeded in a later attempt."""
    newest: dict[str, FailureLine] = {}
    for trial in trials:
        failure = trial.failure
        if failure is not None and failure.kind is not FailureKind.DRIVER_LOST:  # an interrupted attempt has not failed
            count = newest[failure.kind].count + 1 if failure.kind in newest else 1
            newest[failure.kind] = FailureLine(failure.kind, count, trial.id, failure.message)
    return tuple(sorted(newest.values(), key=lambda line: -line.count))


def draw(
    base: Snapshot,
    study: Study,
    *,
    phase: Phase | Ending,
    elapsed: float,
    now: float,
    objective: str | None,
    workers: Sequence[WorkerLine],
) -> Snapshot:
    """Return a snapshot of the study at this moment.

    Args:
        base: A snapshot with what stays the same.
        study: The study.
        phase: Phase of the run, or its ending.
        elapsed: Seconds since the call.
        now: Unix time.
        objective: Name of the optimized metric, once known.
        workers: State of each worker.
    """
    best = study.best if not base.is_ablation else None
    return replace(
        base,
        direction=study.direction,
        phase=phase,
        elapsed=elapsed,
        objective=objective,
        counts=dict(study.counts),
        pareto=len(study.pareto) if base.others else None,
        best_trial=best.id if best is not None else None,
        best_value=best.value if best is not None else None,
        best_step=best.value_step if best is not None else None,
        best_failed=best is not None and best.state is TrialState.FAILED,
        best_config=best.config if best is not None else None,
        workers=tuple(workers),
        confirmation=_draw_confirmation(study),
        training=_draw_training(study, now),
        failures=failures_by_kind([study.trials[number] for number in sorted(study.failing)]),
    )


def _draw_confirmation(study: Study) -> ConfirmationLine | None:
    if not study.repeats:
        return None
    from optimizers.comparisons.confirmation import recommended, repeated  # for confirmations only

    candidates, ended = len(repeated(study)), sum(trial.is_over for trial in study.repeats)
    most = candidates * max(trial.repeat.repeats for trial in study.repeats if trial.repeat is not None)
    found = recommended(study)
    return ConfirmationLine(candidates, ended, most, None if found is None else found[0].id)


def _draw_training(study: Study, now: float) -> TrainingLine | None:
    if not study.trials or not study.trials[-1].is_final_training:
        return None
    trial = study.trials[-1]
    seconds = trial.seconds + (0.0 if trial.started is None else now - trial.started)
    workers = trial.world_size if trial.attempt else 0
    budget = trial.training if trial.training < UNBOUNDED else 0
    others = tuple((name, value) for name, value in trial.newest.items() if name != trial.objective)
    return TrainingLine(trial.state, workers, trial.step, budget, trial.last_value, seconds, others)
