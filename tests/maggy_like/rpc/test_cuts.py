"""Connections that break, stall or vanish: nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest
from wire import echo_server, peer, proxy

from maggy_like.protocol.messages import Hello, Refused

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
                assert worker.stdin is not None
                assert worker.stdout is not None
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
