"""Whole searches: over connections that break again and again, and with reports that are too large to be sent."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from wire import Proxy

from maggy_like import FailurePolicy, Float, Reporter, lagom
from maggy_like.rpc.limits import MAX_FRAME
from maggy_like.rpc.server import Server
from optimizers.core.events import AttemptEnded, Event, Measured

pytestmark = pytest.mark.e2e


def train_in_steps(gate: str, x: float, reporter: Reporter) -> float:
    if reporter.trial == 15:  # the last is not there before the connections broke often enough
        open(gate, "rb").close()
    for step in range(1, reporter.budget + 1):
        time.sleep(0.02)
        reporter.report(loss=x * step, step=step)
    return x


def test_a_search_over_connections_that_break_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[Proxy] = []

    class BehindProxy(Server):
        def __init__(self, host: str, **options: Any) -> None:
            super().__init__(host, **options)
            paths.append(Proxy(int(self.address.rpartition(":")[2])))
            self.address = paths[0].address

    monkeypatch.setattr("maggy_like.driver.runner.Server", BehindProxy)
    over = threading.Event()
    gate = Gate(tmp_path / "gate")
    resets = 0

    def cut() -> None:
        nonlocal resets
        while not over.wait(0.3):
            for path in paths:
                resets += path.connections > 0
                path.reset()
            if resets == 5:
                gate.open()

    cutter = threading.Thread(target=cut)
    cutter.start()
    events: list[Event] = []
    try:
        result = lagom(
            train_in_steps, {"gate": gate.path, "x": Float(0, 1)}, optimizer="asha", metric="loss", direction="min",
            max_budget=9, n_trials=16, workers=2, engine="local", directory=tmp_path / "runs", progress=False,
            callbacks=[events.append],
        )  # fmt: skip
    finally:
        over.set()
        cutter.join()
        for path in paths:
            path.close()
    assert resets >= 5
    ended = [event for event in events if isinstance(event, AttemptEnded)]
    assert all(event.failure is None for event in ended)  # no attempt was lost
    measured = [(e.trial, step) for e in events if isinstance(e, Measured) for step in e.columns["loss"][0]]
    assert len(measured) == len(set(measured))
    for trial in result.trials:
        assert [step for number, step in measured if number == trial.id] == list(range(1, trial.step + 1))


def report_too_much(config: dict[str, Any], reporter: Reporter) -> float:
    if config["x"] > 0.5:
        reporter.report(**{"m" * (MAX_FRAME + 1): 1.0, "loss": 1.0})
    reporter.report(loss=1.0)
    return config["x"]


def test_a_report_past_the_limit_costs_its_trial_alone(tmp_path: Path) -> None:
    result = lagom(
        report_too_much, {"x": Float(0, 1)}, optimizer="random", metric="loss", direction="min", n_trials=3,
        points_to_evaluate=[{"x": 0.9}, {"x": 0.1}, {"x": 0.2}], failures=FailurePolicy(1), workers=1, engine="local",
        directory=tmp_path, progress=False,
    )  # fmt: skip
    assert [trial.failure is not None for trial in result.trials] == [True, False, False]
    failure = result.trials[0].failure
    assert failure is not None
    assert failure.kind == "report"
    assert "must have at most 500 characters, got 16777217" in failure.message
