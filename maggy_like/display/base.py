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
from maggy_like.protocol.fields import UNBOUNDED
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.space.config import Config


class WorkerLine(msgspec.Struct, frozen=True, gc=False):
    """What one worker does now.

    Attributes:
        index: Number of the worker in its gang, from 0.
        host: Name of its machine.
        state: ``joining``, ``idle``, ``busy``, ``lost`` or ``gone``.
        trial: The trial it runs, if any.
        step: That trial's newest step.
        budget: Steps granted to it.
        value: The objective's newest value there.
        seconds: Time since the present attempt began.
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
    """What the training that follows a search, or stands alone, has come to.

    Attributes:
        state: Of its trial.
        workers: How many run it together; 0 before it begins.
        step: Its newest step.
        budget: Its steps in all; 0 where it is not known.
        value: The objective's newest value.
        seconds: Time that its attempts have run so far, those of earlier drivers too.
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
class FailureLine:
    """The trials whose last failure is of one kind.

    Attributes:
        kind: What ended their attempts, such as ``exception`` or ``timeout``.
        count: How many trials.
        trial: The newest of them.
        message: What that one failed with, in one line.
    """

    kind: str
    count: int
    trial: int
    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The search at one moment.

    Attributes:
        name: The run's name.
        directory: Where its files are.
        optimizer: Name of the optimizer.
        objective: Name of the optimised metric, once known.
        direction: ``max`` or ``min``; None while it is not known.
        guessed: Whether nobody has given it, so that the objective's name says it.
        others: The other objectives where there are several: direction and name of each.
        phase: What the run does, or how it ended.
        n_trials: How many configurations are wanted, or None for no bound; 0 where nothing is searched.
        is_ablation: Whether trials are compared in groups, so that none of them is the best.
        counts: Trials by state; states without trials may be missing.
        pareto: How many trials no other dominates, where there are several objectives; else None.
        best_trial: Number of the best trial so far.
        best_value: Its value.
        best_step: The step at which that was measured; None where it has none.
        best_failed: Whether the trial failed after that.
        best_config: Its configuration.
        elapsed: Seconds since the call.
        timeout: Seconds that the search may take, or None.
        workers: One line a worker, in order of index.
        training: The training, once it is due.
        failures: Trials of which an attempt failed or was lost, by kind, the most frequent first; those that were run
            again and came through are among them.
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
    counts: Mapping[TrialState, int] = field(default_factory=dict)
    others: tuple[tuple[str, str], ...] = ()
    pareto: int | None = None
    best_trial: int | None = None
    best_value: float | None = None
    best_step: int | None = None
    best_failed: bool = False
    best_config: Config | None = None
    timeout: float | None = None
    workers: tuple[WorkerLine, ...] = ()
    training: TrainingLine | None = None
    failures: tuple[FailureLine, ...] = ()


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for the reader: of a trial's output, or of the runtime itself (``trial`` None).

    Attributes:
        rank: Which of a trial's workers wrote it, where there are several.
        live: Whether it may yet change, as a progress bar does: the trial's next line of that rank takes its place.
    """

    trial: int | None
    text: str
    rank: int | None = None
    live: bool = False


class Display(Protocol):
    """Shows one run. All calls come from one thread, which is not the one that called ``lagom``."""

    def start(self, snapshot: Snapshot) -> None:
        """Begin to show."""

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        """Show the newest state and the log lines since the last call. Called about 10 times per second."""

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        """Show the last state and let go of the terminal or cell."""


def failures_by_kind(trials: Iterable[Trial]) -> tuple[FailureLine, ...]:
    """A line a kind, the most frequent first; trials that came through in a later attempt are among them."""
    newest: dict[str, FailureLine] = {}
    for trial in trials:
        failure = trial.failure
        if failure is not None and failure.kind is not FailureKind.DRIVER_LOST:  # what an interrupt cuts off is none
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
    """The study at this moment.

    Args:
        base: What stays the same.
        phase: What the run does, or how it ended.
        elapsed: Seconds since the call.
        now: Unix time.
        objective: Name of the optimised metric, once known.
        workers: What each worker does.
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
        training=_draw_training(study, now),
        failures=failures_by_kind([study.trials[number] for number in sorted(study.failing)]),
    )


def _draw_training(study: Study, now: float) -> TrainingLine | None:
    if not study.trials or not study.trials[-1].training:
        return None
    trial = study.trials[-1]
    seconds = trial.seconds + (0.0 if trial.started is None else now - trial.started)
    workers = trial.world_size if trial.attempt else 0
    budget = trial.training if trial.training < UNBOUNDED else 0
    others = tuple((name, value) for name, value in trial.newest.items() if name != trial.objective)
    return TrainingLine(trial.state, workers, trial.step, budget, trial.last_value, seconds, others)
