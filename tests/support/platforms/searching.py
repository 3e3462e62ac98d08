"""The search that every setting runs twice, what must have come of it, and what it must leave as it was.

Twenty configurations of a logistic regression on made-up data, three reports and three checkpoints each. All of it is
drawn by seeds, so what each trial must have measured is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from maggy_like import Float, Reporter, Result, StandaloneCluster, lagom, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAN = math.nan


@dataclass
class Outcome:
    """What came of one setting.

    Attributes:
        wrong: What went wrong; nothing where all is well.
        best: The best value of the search.
        lost: Attempts that trials lost.
        cancel: Seconds from a cancel to the return of ``lagom``.
        leftovers: What was still there afterwards.
    """

    wrong: list[str] = field(default_factory=list)
    best: float = NAN
    lost: int = 0
    cancel: float = NAN
    leftovers: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it to a file, in one go."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(dataclasses.asdict(self)))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Read it back."""
        return cls(**json.loads(path.read_text()))


TRIALS, STEPS = 20, 3


def make_train(pace: float = 0.0, gate: Path | None = None) -> Callable[..., None]:
    """The training; a function of its own travels by value, so that workers need no file of this benchmark.

    Args:
        pace: Seconds to wait in each step, for those who have to come in between.
        gate: A file that later trials wait for, two minutes at most.
    """
    early = TRIALS // 2

    def train(rate: float, decay: float, reporter: Reporter) -> None:
        import numpy as np

        rng = np.random.default_rng(0)
        x = rng.normal(size=(200, 5))
        y = x @ np.arange(1.0, 6.0) > rng.normal(size=200)
        state = reporter.restore() or {"step": 0, "weights": np.zeros(5)}
        weights, begun = state["weights"], time.time()
        while gate is not None and reporter.trial >= early and not gate.exists() and time.time() < begun + 120.0:
            time.sleep(0.1)
        for step in range(state["step"] + 1, reporter.budget + 1):
            time.sleep(pace)
            for _ in range(20):
                guess = 1.0 / (1.0 + np.exp(-(x @ weights)))
                weights = (1.0 - decay) * weights - rate * x.T @ (guess - y) / len(y)
            reporter.checkpoint({"step": step, "weights": weights})
            reporter.report(loss=float(np.mean((guess - y) ** 2)), begun=begun, step=step)

    return train


def search(
    directory: Path | str, *, train: Callable[..., None] | None = None, pace: float = 0.0, **settings: Any
) -> Result:
    """Run it; ``settings`` are those of ``lagom``, and ``train`` is that of :func:`make_train` or does the same."""
    arguments: dict[str, Any] = {
        "optimizer": "random",
        "metric": "loss",
        "direction": "min",
        "max_budget": STEPS,
        "n_trials": TRIALS,
    }
    space = {"rate": Float(0.01, 10.0, log=True), "decay": Float(1e-5, 1e-1, log=True)}
    return lagom(train or make_train(pace), space, directory=directory, progress="plain", **(arguments | settings))


class Plain:
    """A reporter for a training outside of any search; it keeps what is reported."""

    budget = STEPS

    def __init__(self) -> None:
        self.losses: list[float] = []

    def restore(self) -> None:
        """Nothing was saved."""

    def checkpoint(self, state: Any) -> None:
        """Save nothing."""

    def report(self, loss: float, **_: float) -> None:
        """Keep it."""
        self.losses.append(loss)


def wrong(result: Result) -> Iterator[str]:
    """What is not as it must be in a search that nobody ended: every trial has every measurement."""
    if result.ending != "completed":
        yield f"the search ended as {result.ending!r}"
    if len(result.trials) != TRIALS:
        yield f"{len(result.trials)} trials"
    train = make_train()
    for trial in result.trials:
        plain = Plain()
        train(**trial.config, reporter=plain)
        measured = dict(zip(trial.curve.steps, trial.curve.values, strict=True))
        expected = dict(enumerate(plain.losses, 1))
        same = measured.keys() == expected.keys() and all(abs(measured[n] - expected[n]) < 1e-9 for n in expected)
        if trial.state != "completed":
            yield f"trial {trial.id} is {trial.state}: {trial.failure}"
        elif not same:
            yield f"trial {trial.id} measured {measured} and not {expected}"


def lost(result: Result) -> int:
    """The attempts that were held against its trials."""
    return sum(trial.losses + trial.stage_losses for trial in result.trials)


PATIENCE = 10.0
"""Seconds that Spark gets to note that a job has ended."""


@contextlib.contextmanager
def session(master: str | None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session of the process, stopped afterwards."""
    made = spark_session(master, conf=conf)
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def standalone(
    conf: Mapping[str, str] | None = None, *, workers: int = 2, cores: int = 1, gpus: int = 0
) -> Iterator[SparkSession]:
    """A session on a standalone cluster of its own."""
    with (
        StandaloneCluster(workers, cores=cores, memory="1g", gpus=gpus) as cluster,
        session(cluster.master_url, cluster.conf | dict(conf or {})) as made,
    ):
        yield made


def twice(spark: SparkSession | None = None, directory: str = "runs", **settings: Any) -> Outcome:
    """Search twice; ``settings`` are those of :func:`search`."""
    outcome = Outcome()
    ports = listening()
    for call in ("first", "second"):
        found = search(directory, **settings)
        outcome.best = found.best_value if found.best_value is not None else outcome.best
        outcome.wrong += [f"{call} call: {what}" for what in wrong(found)]
        if attempts := lost(found):
            outcome.wrong.append(f"{call} call: {attempts} attempts lost")
    outcome.leftovers += left(spark, ports)
    return outcome


def left(spark: SparkSession | None, ports: set[int]) -> list[str]:
    """What a search has left in this process: jobs under way, and ports beside those of before."""
    found = [f"port {port}" for port in sorted(listening() - ports)]
    return found + [f"Spark job {job}" for job in (active_jobs(spark) if spark is not None else ())]


def active_jobs(spark: SparkSession) -> list[int]:
    """The jobs under way; Spark is given a moment to note the end of the last one."""
    if not hasattr(spark, "_sc"):  # Spark Connect does not tell
        return []
    until = time.monotonic() + PATIENCE
    while (jobs := spark.sparkContext.statusTracker().getActiveJobsIds()) and time.monotonic() < until:
        time.sleep(0.1)
    return list(jobs)


def listening() -> set[int]:
    """The ports at which this process listens."""
    connections = psutil.Process().net_connections("inet")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
