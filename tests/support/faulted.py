"""Searches that write their events to a pipe, for tests that do them harm (see ``faults.py``)."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from spark_jobs import active_jobs

from maggy_like import Float, LocalEngine, Reporter, SparkEngine, lagom, spark_session
from maggy_like.driver import runner as job
from maggy_like.driver.state_machine import StateMachine
from maggy_like.engines.base import Engine
from maggy_like.engines.local import LocalRun
from optimizers.core.events import Event, to_json


def train(directory: str, x: float, reporter: Reporter) -> dict[str, float]:
    """Say who runs; wait in the middle at one gate, and where a lost attempt went on, at another."""
    start = reporter.restore() or 0
    Path(directory, "pids", str(os.getpid())).write_text(repr(x))
    for step in range(start + 1, reporter.budget + 1):
        if step == reporter.budget // 2 + 1:
            open(f"{directory}/{'again' if start else 'gate'}", "rb").close()
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
    Path(directory, "pids", f"{os.getpid()}.done").touch()
    return {"score": x * reporter.budget, "start": start}


def say(kind: str, what: bytes) -> None:
    """Write one line to the pipe."""
    answers.write(kind.encode() + b" " + what + b"\n")
    answers.flush()


def tell(event: Event) -> None:
    say("event", to_json(event))


cancel = LocalRun.cancel


def search(engine: Engine, directory: str, heartbeat: float = 15.0, kills: bool = True, n_trials: int = 4) -> None:
    """Search with two workers."""
    # Without kills, the engine cannot reach its first workers: they must leave by themselves.
    LocalRun.cancel = lambda run: cancel(run) if kills or run.incarnation else None  # type: ignore[method-assign]
    job.StateMachine = partial(StateMachine, heartbeat_timeout=heartbeat)  # type: ignore[assignment,misc]
    space = {"directory": directory, "x": Float(0, 1)}
    result = lagom(train, space, optimizer="random", n_trials=n_trials, max_budget=6, workers=2, engine=engine,
                   directory=f"{directory}/runs", progress="plain", callbacks=[tell])  # fmt: skip
    say("result", msgspec.json.encode([result.ending, *map(describe, result.trials)]))


def describe(trial: Any) -> dict[str, Any]:
    """What a test holds against the events."""
    return {
        "x": trial.config["x"],
        "state": trial.state,
        "attempt": trial.attempt,
        "start": trial.metrics.get("start"),
        "steps": list(trial.curve.steps),
        "values": list(trial.curve.values),
    }


def main(master: str, conf: dict[str, str]) -> None:
    """One search for each line on stdin, all on one session."""
    spark = spark_session(master, conf=conf) if master else None
    for line in sys.stdin:
        options = json.loads(line)
        barrier = options.pop("barrier", True)
        search(SparkEngine(spark, barrier=barrier) if spark is not None else LocalEngine(), **options)
        if spark is not None:
            say("jobs", str(active_jobs(spark)).encode())
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    # Not stdout, to which Spark's workers and the JVM write too, and which may cut a line in two.
    answers = open(int(sys.argv[1]), "wb")  # noqa: SIM115
    os.set_inheritable(answers.fileno(), False)
    main(sys.argv[2], json.loads(sys.argv[3]))
