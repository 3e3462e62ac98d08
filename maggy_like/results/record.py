"""What the journal of a run has beyond its result: when things happened, and what the run was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from maggy_like.errors import UserError
from maggy_like.results.attempts import Attempt, Clock, attempts_of, clock_of
from maggy_like.results.data import ResultData
from maggy_like.storage.journal import Contents, backend_of, read_journal, reading
from optimizers.core.trial import Trial, TrialState


@dataclass(frozen=True)
class Record:
    """A result and what its journal holds.

    Attributes:
        result: The result.
        contents: The journal's records.
    """

    result: ResultData
    contents: Contents

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Who ran what when."""
        return attempts_of(self.contents)

    @cached_property
    def clock(self) -> Clock:
        """The run's clock."""
        return clock_of(self.contents)

    @property
    def is_longer(self) -> bool:
        """Whether drivers had the run for longer than the clock knows: one that was killed records no end."""
        return self.result.is_longer

    @cached_property
    def ends(self) -> dict[int, float]:
        """When the last attempt of each trial ended, in seconds since the run began."""
        return {attempt.trial: attempt.end for attempt in self.attempts if attempt.state is not TrialState.RUNNING}

    @property
    def busy_share(self) -> float | None:
        """The share of the workers' time in which trials ran, from the first one's start to the last one's end."""
        workers = {worker for attempt in self.attempts for worker in attempt.workers}
        begin = min((attempt.begin for attempt in self.attempts), default=0.0)
        end = max((attempt.end for attempt in self.attempts), default=0.0)
        busy = sum((attempt.end - attempt.begin) * len(attempt.workers) for attempt in self.attempts)
        return busy / (len(workers) * (end - begin)) if end > begin else None

    def ended(self, objective: int = 0) -> list[tuple[float, Trial, float]]:
        """The trials of the search that have a finite value, in the order in which they ended: when, which, and that.

        Args:
            objective: Which one, where there are several.
        """
        found = []
        for trial in self.result.trials:
            value = value_of(self.result, trial, objective)
            if value is not None and math.isfinite(value) and trial.id in self.ends:
                found.append((self.ends[trial.id], trial, value))
        return sorted(found, key=lambda each: each[0])


def value_of(result: ResultData, trial: Trial, objective: int = 0) -> float | None:
    """What a trial is worth in one objective."""
    if not result.others:
        return trial.value
    return trial.values[objective] if trial.values else None


def read_record(result: ResultData) -> Record:
    """The journal of a result's run.

    Raises:
        UserError: It is gone.
        JournalError: It cannot be read.
    """
    backend = backend_of(str(result.directory))
    with reading(backend):
        exists = backend.exists()
    if not exists:
        raise UserError(f"the run's journal is gone from {result.directory}; it says when each trial ran")
    return Record(result, read_journal(backend))


def improvements(ended: list[tuple[float, Trial, float]], direction: str) -> list[tuple[float, Trial, float]]:
    """Those that were better than all before them."""
    best: list[tuple[float, Trial, float]] = []
    for each in ended:
        if not best or (each[2] > best[-1][2] if direction == "max" else each[2] < best[-1][2]):
            best.append(each)
    return best
