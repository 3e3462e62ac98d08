"""What a display shows: snapshots of the run and its newest log lines. And the protocol of the displays.

The driver makes a :class:`Snapshot` of the study a few times per second. A display draws the newest one, and the log
lines that came since. Displays never see the live study, so they need no lock.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import UNBOUNDED
from optimizers.core.study import Study
from optimizers.core.trial import FailureKind, Trial, TrialState
from optimizers.space import Config


class WorkerLine(msgspec.Struct, frozen=True, gc=False):
    """State of one worker."""

    index: int  # number of the worker, from 0
    host: str  # name of its machine
    state: str  # ``joining``, ``idle``, ``busy``, ``lost`` or ``gone``
    trial: int | None = None  # number of its trial, if it runs one
    step: int = 0  # newest step of the trial
    budget: int = 0  # steps granted to the trial
    value: float | None = None  # newest value of the objective
    seconds: float = 0.0  # seconds since the attempt began


@dataclass(frozen=True, slots=True)
class TrainingLine:
    """State of the training, after a search or without one."""

    state: TrialState  # state of its trial
    workers: int  # number of workers that run it together. 0 before it begins
    step: int  # its newest step
    budget: int  # number of its steps. 0 if not known
    value: float | None  # newest value of the objective
    seconds: float  # seconds that its attempts have run so far, including those of earlier drivers
    others: tuple[tuple[str, float], ...] = ()  # name and newest value of the other metrics


@dataclass(frozen=True, slots=True)
class ConfirmationLine:
    """State of the confirmation after a search."""

    candidates: int  # number of trials of the search that are repeated
    ended: int  # number of repeats that have ended
    most: int  # maximum number of repeats
    leader: int | None  # trial of the search whose repeats are the best so far. None while that is unknown


@dataclass(frozen=True, slots=True)
class FailureLine:
    """The trials whose last failure is of one kind."""

    kind: str  # kind of the failure, such as ``exception`` or ``timeout``
    count: int  # number of trials
    trial: int  # the newest of them
    message: str  # message of its failure, in one line


TRIED = (TrialState.COMPLETED, TrialState.STOPPED, TrialState.PAUSED, TrialState.FAILED)
"""States of a trial that has run. A paused one counts: most trials of ASHA are never promoted, and a bar without them
would stop at a tenth."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The search at one moment.

    Attributes:
        counts: Number of trials by state. States without trials may be missing.
        failures: Trials with a failed or lost attempt, by kind, the most frequent first. Trials that succeeded in a
            later attempt are included.
    """

    name: str  # name of the run
    directory: str  # directory of its files
    optimizer: str  # name of the optimizer
    direction: str | None  # ``max`` or ``min``. None while it is not known
    phase: Phase | Ending  # phase of the run, or its ending
    elapsed: float  # seconds since the call
    objective: str | None = None  # name of the optimized metric, once known
    n_trials: int | None = None  # number of configurations to try. None for no limit, 0 if only a training runs
    finds_best: bool = True  # whether the search looks for the best trial, instead of comparing groups of trials
    guessed: bool = False  # whether the direction follows from the objective's name
    resumes_all: bool = False  # whether each paused trial continues, as in population-based training
    counts: Mapping[TrialState, int] = field(default_factory=dict)
    others: tuple[tuple[str, str], ...] = ()  # direction and name of all objectives except the first
    pareto: int | None = None  # number of trials in the Pareto set. None with one objective
    best_trial: int | None = None  # number of the best trial so far
    best_value: float | None = None
    best_step: int | None = None  # the step at which the value was measured. None if it has no step
    best_failed: bool = False  # whether the trial failed after that
    best_config: Config | None = None
    timeout: float | None = None  # seconds that the search may take, or None
    engine: str = ""  # name of the engine that starts the workers. Empty if not known
    n_workers: int = 0  # number of workers that it starts. 0 if not known, or if workers come and go
    imports: tuple[str, ...] = ()  # packages that workers import before their first trial
    workers: tuple[WorkerLine, ...] = ()  # one line per worker, in order of index
    confirmation: ConfirmationLine | None = None  # the confirmation, once it has begun
    training: TrainingLine | None = None  # the training, once it is due
    failures: tuple[FailureLine, ...] = ()

    @property
    def is_search(self) -> bool:
        """Whether the run is a search, and not only a training run."""
        return self.n_trials != 0

    @property
    def tried(self) -> int:
        """The number of configurations that have run at least once and do not run now."""
        return sum(self.counts.get(state, 0) for state in TRIED)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a trial's output, or of the runtime itself (``trial`` is None)."""

    trial: int | None
    text: str
    rank: int | None = None  # rank of the worker that wrote it, if several run the trial
    live: bool = False  # whether the trial's next line of that rank replaces it, as in a progress bar
    is_warning: bool = False  # whether it is about a mistake of the caller, and logged if there is no display


_OVERHEAD = 100
"""Bytes of a line in addition to its text."""


class LineBuffer:
    """Keeps the newest lines for any number of readers, each of which keeps the number of its next line."""

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self.dropped = 0  # number of dropped lines. It is also the number of the oldest line that is kept
        self._max_lines = max_lines  # number of lines to keep. The oldest ones are dropped first
        self._max_bytes = max_bytes
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[LogLine]:
        with self._lock:
            return iter(list(self._lines))

    def append(self, line: LogLine) -> None:
        """Add a line. If it is larger than ``max_bytes``, it is dropped."""
        with self._lock:
            self._lines.append(line)
            self._bytes += _size(line)
            while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
                self._bytes -= _size(self._lines.popleft())
                self.dropped += 1

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines."""
        for line in lines:
            self.append(line)

    def read(self, number: int) -> tuple[list[LogLine], int, int]:
        """Return the lines from ``number`` on, the number of dropped ones, and the number of the next line."""
        with self._lock:
            skipped = max(0, number - self.dropped)
            lines = list(itertools.islice(self._lines, skipped, None))
            return lines, max(0, self.dropped - number), self.dropped + len(self._lines)


def _size(line: LogLine) -> int:
    return sys.getsizeof(line.text) + _OVERHEAD


def missed_note(missed: int) -> list[LogLine]:
    """Return a line about lines that a reader has missed, if there are any."""
    note = LogLine(None, f"{missed} lines came too fast to be shown; the trials' log files have them")
    return [note] * bool(missed)


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


@dataclass(frozen=True, slots=True)
class Shown:
    """What the displays of a run have left in sight. Whatever prints the result later does not repeat it."""

    summary: bool = False  # how the run ended
    lines: bool = False  # the log lines, which include the traceback of each cause of failures

    @classmethod
    def by(cls, displays: Iterable[Display]) -> Shown:
        """Return what the displays of a run that has ended have shown."""
        every = [*displays]
        return cls(any(each.has_shown_summary for each in every), any(each.keeps_lines for each in every))


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
    """Return a snapshot of the study at the Unix time ``now``. ``base`` has what stays the same."""
    best = study.best if base.finds_best else None
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


def draw_worker(index: int, host: str, state: str, trial: Trial | None, seconds: float) -> WorkerLine:
    """Return the line of a worker that runs a trial, or none."""
    if trial is None:
        return WorkerLine(index, host, state)
    budget = trial.budget if trial.budget < UNBOUNDED else 0
    return WorkerLine(index, host, state, trial.id, trial.step, budget, trial.last_value, seconds)


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
