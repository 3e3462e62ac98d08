"""What a worker says of a driver that it does not reach."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from maggy_like.errors import WorkerError
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.rpc import endpoint as reach
from maggy_like.rpc.endpoint import why_unreachable
from maggy_like.rpc.security import new_key_pair
from maggy_like.worker.agent import agent as first_contact
from maggy_like.worker.agent.agent import Agent, FirstContact
from maggy_like.worker.agent.children import InlineLauncher

CONTEXT = WorkerContext(3, 0, "node7", new_key_pair())


def task(address: str, **options: Any) -> WorkerTask:
    options = {"isolation": "none", **options}
    return WorkerTask(address, new_key_pair()[0], "run", b"", (), (), (), "file:///store", "logs", **options)


@contextmanager
def listener(host: str = "127.0.0.1", backlog: int = 100) -> Iterator[tuple[socket.socket, int]]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=backlog) as made:
        yield made, made.getsockname()[1]


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_driver_that_listens_is_reached_and_one_that_does_not_is_not(host: str, shown: str) -> None:
    with listener(host) as (_, port):
        assert why_unreachable(f"tcp://{shown}:{port}") == ""
    assert why_unreachable(f"tcp://{shown}:{port}") == "connection refused"


def test_a_name_that_does_not_resolve_is_told() -> None:
    assert why_unreachable("tcp://no.such.host.invalid:9") == "the name 'no.such.host.invalid' does not resolve there"


def test_no_answer_is_told_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PROBE_PATIENCE", 0.2)
    with listener(backlog=0) as (_, port):
        full = []  # the backlog of a program that takes no connection
        try:
            while not (why := why_unreachable(f"tcp://127.0.0.1:{port}")) and len(full) < 20:
                full.append(socket.socket())
                full[-1].setblocking(False)
                full[-1].connect_ex(("127.0.0.1", port))
            assert why.startswith("no answer, as where a firewall is between")
        finally:
            for end in full:
                end.close()


def test_a_worker_that_does_not_reach_its_driver_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "CONTACT_PATIENCE", 0.2)
    with listener() as (_, port):
        address = f"tcp://127.0.0.1:{port}"
    launcher = InlineLauncher(task(address))
    with pytest.raises(WorkerError) as caught:
        Agent(task(address), CONTEXT, launcher=launcher).run()
    launcher.abandon()
    said = str(caught.value)
    assert said.startswith(
        f"worker 3 on host 'node7' cannot reach the driver at {address}: connection refused; open th"
    )
    assert "\n" not in said


def test_a_driver_that_is_there_and_busy_gets_the_whole_silence() -> None:
    with listener() as (_, port):
        contact = FirstContact(task(f"tcp://127.0.0.1:{port}", silence=60.0), CONTEXT)
        now = contact._started
        for seconds in (1.0, 16.0, 31.0, 46.0, 59.0):
            contact.check(now + seconds)
        with pytest.raises(WorkerError, match="the process there is not the driver of this run"):
            contact.check(now + 61.0)
