"""Runs of a given size, as journals: an ASHA, one trial in twenty of which fails; and the browser for their reports."""

from __future__ import annotations

import heapq
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from maggy_like import Float, Integer, SearchSpace
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, RunStatus, backend_of
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.trial import Failure, FailureKind, TrialState

STEPS = 27
RUNGS = (1, 3, 9)
BEGUN = 1_780_000_000.0

SPACE = SearchSpace(
    lr=Float(1e-4, 1e-1, log=True),
    units=Integer(16, 256),
    dropout=Float(0.0, 0.5),
    activation=["relu", "tanh", "gelu"],
    momentum=Float(0.0, 0.99),
)

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 12, in train\nValueError: the loss is nan'


def write_run(directory: Path, name: str, n_trials: int, workers: int) -> Path:
    """A run's directory with the journal of a search."""
    journal = Journal(backend_of(str(directory / name)))
    header = RunHeader(
        FORMAT_VERSION, name, BEGUN, SPACE.to_json(), "ASHA(eta=3)", ["max"], ["accuracy"], seed=0, max_budget=STEPS
    )
    journal.begin(header)
    journal.note(RunStatus(Ending.RUNNING, BEGUN, environment={"python": "3.11"}))
    recorded = list(events(n_trials, workers))
    journal.append(recorded)
    last = max(event.time for event in recorded if isinstance(event, AttemptEnded))
    journal.note(RunStatus(Ending.COMPLETED, last, last - BEGUN))
    journal.close()
    return directory / name


def events(n_trials: int, workers: int) -> Iterator[Event]:
    """The events of a search: a trial whose accuracy is low at a rung is stopped there."""
    rng = np.random.default_rng(0)
    free = [(BEGUN + 2.0, worker) for worker in range(workers)]
    for trial in range(n_trials):
        now, worker = heapq.heappop(free)
        config = SPACE.sample(rng)
        yield TrialCreated(trial, config, ask=trial)
        yield AttemptStarted(trial, 1, worker, STEPS, now, config, ask=trial)
        quality = math.exp(-((math.log10(config["lr"]) + 2.3) ** 2)) * (0.8 + 0.2 * config["units"] / 256)
        curve = [quality * (1.0 - math.exp(-step / 6)) + float(rng.normal(0.0, 0.01)) for step in range(1, STEPS + 1)]
        bad = [rung for rung, bar in zip(RUNGS, (0.05, 0.2, 0.55), strict=True) if curve[rung - 1] < bar]
        end = min([*bad, STEPS])
        fails = rng.random() < 0.05
        yield Measured(trial, 1, "accuracy", {"accuracy": (list(range(1, end + 1)), curve[:end])})
        now += end * float(rng.uniform(0.5, 2.0))
        if fails:
            failure = Failure(FailureKind.EXCEPTION, "ValueError: the loss is nan", TRACEBACK, ("ValueError",), "train")
            yield AttemptEnded(trial, 1, TrialState.FAILED, now, failure=failure)
        else:
            yield AttemptEnded(trial, 1, TrialState.STOPPED if end < STEPS else TrialState.COMPLETED, now)
        heapq.heappush(free, (now + 0.02, worker))


def chromium() -> str | None:
    """A Chromium or Chrome on the PATH; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)
