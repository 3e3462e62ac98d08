"""Connections that break, stall or vanish: nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from wire import Proxy, echo_server, peer, proxy

from maggy_like import FailurePolicy, Float, Reporter, lagom
from maggy_like.protocol.messages import Hello, Refused
from maggy_like.rpc.server import Server
from maggy_like.rpc.sockets import MAX_FRAME
from optimizers.core.events import AttemptEnded, Event, Measured

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("seed", [0, 1])
def test_resets_lose_and_repeat_no_measurement(seed: int) -> None:
    rng = random.Random(seed)
    with echo_server() as echo, proxy(echo.port) as cut:
        with peer(echo, 0, address=cut.address) as one, peer(echo, 1, address=cut.address) as two:
            for count in range(1, 401):
                for worker in (one, two):
                    worker.report()
                    worker.attend(0)
                if count % 20 == 0:
                    wanted = cut.connections + 2
                    cut.reset()
                    while cut.connections < wanted:
                        one.attend(0.001)
                        two.attend(0.001)
                elif rng.random() < 0.2:
                    one.attend(rng.random() * 0.005)
            for worker in (one, two):
                worker.wait(lambda worker=worker: len(worker.decided) == 400)  # type: ignore[misc]
            assert one.decided == two.decided == list(range(1, 401))
        assert cut.connections >= 40
        assert echo.steps(0) == echo.steps(1) == list(range(1, 401))
        assert sum(isinstance(message, Hello) for _, message in echo.taken) == 2  # nobody came as a new worker
        # A connection that is reset before its handshake is over looks like a stranger's.
        assert set(echo.server.refused) <= {"repeated", "no handshake in time", "not ZeroMQ"}


def test_a_stalled_path_is_noticed_and_left_for_another() -> None:
    with echo_server() as echo, proxy(echo.port) as path, peer(echo, 0, address=path.address) as worker:
        worker.rounds(5)
        path.stalled.set()
        start = time.monotonic()
        for _ in range(20):
            worker.report()
        worker.wait(lambda: path.connections > 1)
        assert time.monotonic() - start < 200.0  # TCP itself would take a quarter of an hour
        path.reset()  # what the stalled path still holds must not come out of it
        path.stalled.clear()
        worker.wait(lambda: len(worker.decided) == 25)
        assert echo.steps(0) == list(range(1, 26))


def test_reports_wait_while_there_is_no_driver_to_be_reached() -> None:
    with echo_server() as echo, proxy(echo.port) as path, peer(echo, 0, address=path.address) as worker:
        worker.rounds(1)
        path.stalled.set()
        while not worker.client.is_full:
            worker.report()
        assert worker.reports <= 1001
        path.reset()
        path.stalled.clear()
        worker.wait(lambda: len(worker.decided) == worker.reports)
        assert not worker.client.is_full


def test_a_refused_incarnation_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.rpc.client.CLOSE_PATIENCE", 500.0)
    with echo_server() as echo, proxy(echo.port) as path:
        with peer(echo, 0, address=path.address) as old:
            old.rounds(1)
            path.stalled.set()
            with peer(echo, 0, incarnation=1) as new:  # in its place, while it was cut off
                new.rounds(1)
                path.reset()
                path.stalled.clear()
                old.report()
                old.wait(lambda: any(isinstance(answer, Refused) for answer in old.answers))
                new.rounds(1)
            start = time.monotonic()
        assert time.monotonic() - start < 300.0  # it has nobody to wait for
        assert echo.steps(0) == [1, 1, 2]


WORKER = """
import sys
from wire import Peer

class Far:
    server = type("FarServer", (), {"public_key": sys.argv[2].encode(), "is_ipv6": False})
    address = sys.argv[1]

    def keys(index, incarnation):
        return sys.argv[3].encode(), sys.argv[4].encode()

worker = Peer(Far)
while worker.reports < 500:
    worker.report()
    worker.attend(0.02)
    if worker.reports == 100:
        print("a fifth", flush=True)
        sys.stdin.readline()  # the link is down
worker.wait(lambda: len(worker.decided) == 500)
assert worker.decided == list(range(1, 501))
worker.close()
print("all answered")
"""


def test_a_link_that_is_down_for_five_seconds_loses_nothing(namespace: tuple[str, str, str]) -> None:
    name, link, host = namespace
    with echo_server(host=host) as echo:
        keys = [key.decode() for key in (echo.server.public_key, *echo.keys(0))]
        command = ["ip", "netns", "exec", name, sys.executable, "-c", WORKER, echo.address, *keys]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as worker:
            try:
                assert worker.stdout.readline() == "a fifth\n"
                subprocess.run(["ip", "link", "set", link, "down"], check=True)
                worker.stdin.write("\n")
                worker.stdin.flush()
                time.sleep(5)  # the length of the cut itself
                assert len(echo.steps(0)) <= 100
                subprocess.run(["ip", "link", "set", link, "up"], check=True)
                out, _ = worker.communicate(timeout=100)
            finally:
                worker.kill()
        assert out == "all answered\n"
        assert echo.steps(0) == list(range(1, 501))
        assert sum(isinstance(message, Hello) for _, message in echo.taken) == 1


# -- whole searches: over connections that break again and again, and with reports that are too large to be sent


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
    assert failure.kind == "report"
    assert "must have at most 500 characters, got 16777217" in failure.message
