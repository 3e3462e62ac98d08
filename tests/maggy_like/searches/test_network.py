"""Workers behind a link that goes down in the middle of a search, and behind an address translation."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from far import FarEngine, enter
from gate import Gate
from wire import proxy

from maggy_like import Float, lagom
from maggy_like.driver import runner as job
from maggy_like.driver.state_machine import StateMachine
from maggy_like.engines.local import LocalRun
from maggy_like.errors import EngineError
from maggy_like.rpc.endpoint import Endpoint
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e

STEPS = 40


def make_train() -> Callable[..., None]:
    """A training of two seconds after the cut; pickled by value, since a worker has no such module."""

    def train(gate: str, x: float, reporter: Any) -> None:
        import time

        for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
            if step == 3:
                open(gate, "rb").close()
            time.sleep(0.05)
            reporter.checkpoint(step)
            reporter.report(score=x * step, step=step)

    return train


class Cut:
    """Takes the link down once each worker's trial is under way, and up again later.

    Args:
        link: Its name.
        gate: Opened when the link is down.
        seconds: How long it is down; None for until the driver has ended the attempts of both trials.
    """

    def __init__(self, link: str, gate: Gate, seconds: float | None) -> None:
        self.steps: Counter[tuple[int, int]] = Counter()
        self.attempts: Counter[int] = Counter()
        self._link = link
        self._gate = gate
        self._seconds = seconds
        self._is_cut = False
        self._given_up: set[int] = set()

    def __call__(self, event: Event) -> None:
        match event:
            case AttemptStarted(trial=trial):
                self.attempts[trial] += 1
            case Measured(trial=trial, columns=columns):
                self.steps.update((trial, step) for step in columns["score"][0])
                if not self._is_cut and {number for number, _ in self.steps} == {0, 1}:
                    self._cut()
            case AttemptEnded(trial=trial, state=TrialState.PENDING):
                self._given_up.add(trial)
                if self._seconds is None and self._given_up == {0, 1}:
                    self._set("up")

    def _cut(self) -> None:
        self._is_cut = True
        self._set("down")
        self._gate.open()
        if self._seconds is not None:
            threading.Timer(self._seconds, self._set, ["up"]).start()

    def _set(self, state: str) -> None:
        subprocess.run(["ip", "link", "set", self._link, state], check=True)


@pytest.mark.parametrize(
    ("seconds", "heartbeat"), [(5.0, 60.0), pytest.param(None, 6.0, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_a_cut_network_costs_no_trial_and_no_measurement(
    namespace: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float | None,
    heartbeat: float,
) -> None:
    name, link, host = namespace
    enter(name, tmp_path, monkeypatch)
    cancel = LocalRun.cancel
    monkeypatch.setattr(job, "StateMachine", partial(StateMachine, heartbeat_timeout=heartbeat))
    # The engine cannot kill workers that are cut off: when the link is back, they send what comes too late.
    monkeypatch.setattr(LocalRun, "cancel", lambda run: cancel(run) if run.incarnation else None)
    gate = Gate(tmp_path / "gate")
    cut = Cut(link, gate, seconds)

    result = lagom(
        make_train(), {"gate": gate.path, "x": Float(0, 1)}, optimizer="random", n_trials=4, max_budget=STEPS,
        workers=2, engine=FarEngine(Endpoint(host)), directory=tmp_path, progress=False, callbacks=[cut],
    )  # fmt: skip

    assert result.counts == {TrialState.COMPLETED: 4}
    assert cut.steps == Counter({(trial, step): 1 for trial in range(4) for step in range(1, STEPS + 1)})
    for trial in result.trials:
        assert list(trial.curve.values) == [trial.config["x"] * step for step in range(1, STEPS + 1)]
    if seconds is not None:
        assert set(cut.attempts.values()) == {1}
    else:
        assert cut.attempts[0] == cut.attempts[1] == 2


# -- an address that the driver cannot listen at -----------------------------------------------------


def test_workers_connect_through_a_forwarded_port(
    namespace: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search listens at 127.0.0.1, which no other network reaches; the workers' address is forwarded to it."""
    name, _, outside = namespace
    enter(name, tmp_path, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    engine = FarEngine(Endpoint(outside, bind="127.0.0.1", ports=(port, port)))
    with proxy(port, (outside, port)) as relay:
        result = lagom(
            lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=4, workers=2, engine=engine,
            directory=tmp_path / "runs", progress=False,
        )  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 4}
    assert relay.connections >= 2


def test_an_address_that_cannot_be_bound_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"the driver cannot listen at '198\.51\.100\.7'"):
        lagom(
            lambda x: x, {"x": Float(0, 1)}, n_trials=4, workers=2, engine=FarEngine(Endpoint("198.51.100.7")),
            directory=tmp_path / "runs", progress=False,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
