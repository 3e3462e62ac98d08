"""Where the server listens and where workers are told that it does, and what is said of a wrong address."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from wire import EchoServer, Peer, peer, proxy

from maggy_like.errors import ConfigError, EngineError, WorkerError
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.rpc import client, endpoint
from maggy_like.rpc.endpoint import first_free, read_host, read_ports, read_reachable, shown, why_unreachable
from maggy_like.rpc.server import Server
from maggy_like.rpc.sockets import new_key_pair
from maggy_like.worker.agent import beginnings
from maggy_like.worker.agent.agent import Agent
from maggy_like.worker.agent.beginnings import FirstContact
from maggy_like.worker.agent.children import InlineLauncher


@pytest.fixture
def taken() -> Any:
    """A port of 127.0.0.1 that another program listens at."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("bind", ["::1", "::", "0.0.0.0"])
def test_workers_reach_a_server_at_any_address_that_it_is_bound_to(bind: str) -> None:
    for host in {"::1": ["::1"], "::": ["::1", "127.0.0.1"], "0.0.0.0": ["127.0.0.1"]}[bind]:
        echo = EchoServer(host, bind=bind)
        try:
            assert echo.server.is_ipv6 is (":" in bind)
            with peer(echo) as worker:
                worker.rounds(3)
        finally:
            echo.close()


def test_a_name_is_resolved_by_the_worker_to_an_address_as_the_server_is_bound_to() -> None:
    """The server's machine may not know the name; ``localhost`` has addresses of both kinds on many machines."""
    echo = EchoServer("localhost", bind="127.0.0.1")
    try:
        assert echo.address == f"tcp://localhost:{echo.port}"
        with peer(echo) as worker:
            worker.rounds(3)
    finally:
        echo.close()
    echo = EchoServer("no.such.host.invalid", bind="127.0.0.1")
    try:
        assert echo.address == f"tcp://no.such.host.invalid:{echo.port}"
        with peer(echo, address=f"tcp://127.0.0.1:{echo.port}") as worker:
            worker.rounds(3)
    finally:
        echo.close()


def test_a_forwarded_port_leads_to_the_server() -> None:
    """As behind NAT: what workers connect to is not what the server is bound to."""
    echo = EchoServer("198.51.100.7", bind="127.0.0.1")
    try:
        with proxy(echo.port) as relay, peer(echo, address=relay.address) as worker:
            worker.rounds(3)
            assert relay.connections == 1
    finally:
        echo.close()


def test_the_first_free_port_of_a_range_is_taken(taken: int) -> None:
    echo = EchoServer("127.0.0.1", ports=(taken, taken + 50))
    try:
        assert taken < echo.port <= taken + 50
        worker = Peer(echo)
        worker.rounds(1)
        worker.close()
    finally:
        echo.close()


def test_a_taken_port_is_named_with_the_mend(taken: int) -> None:
    message = f"port must be free at 127.0.0.1, got {taken}, and this port is taken; use another, or a wider range "
    with pytest.raises(EngineError, match=re.escape(message)) as caught:
        Server("127.0.0.1", ports=(taken, taken))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ports", [(1023, 1023), (80, 90)])
def test_a_port_that_a_user_may_not_have_is_named_with_the_mend(ports: tuple[int, int]) -> None:
    def refuse(port: int) -> int:
        raise OSError(errno.EACCES, "no")

    with pytest.raises(EngineError, match=f"port must be at least 1024 for this user, got {shown(ports)}"):
        endpoint.take_port("127.0.0.1", ports, refuse)


@pytest.mark.parametrize(
    ("host", "bind", "message"),
    [
        (
            "198.51.100.7",
            "",
            "cannot listen at '198.51.100.7': that is not an address of this machine; use bind= with one",
        ),
        (
            "10.0.0.5",
            "no.such.host.invalid",
            "cannot listen at 'no.such.host.invalid': the name does not resolve on th",
        ),
        ("10.0.0.5", "2001:db8::7", "cannot listen at '2001:db8::7': that is not an address of this machine"),
        ("a" * 70 + ".com", "", "the name does not resolve on this machine"),
    ],
)
def test_an_address_that_cannot_be_bound_is_named_with_the_mend(host: str, bind: str, message: str) -> None:
    with pytest.raises(EngineError, match=re.escape(message)) as caught:
        Server(host, bind=bind)
    assert "\n" not in str(caught.value)


def test_a_name_of_another_machine_is_named_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("198.51.100.7", 0))] * 2
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
    with pytest.raises(
        EngineError, match=r"listen at 'far', which is 198.51.100.7: that is not an address of this machine"
    ):
        endpoint.own_address("far")


@pytest.mark.parametrize(
    "value", [True, 7, "", " ", "http://a", "a:80", "a/b", "-a", "[a]", "a b", ["10.0.0.5"], "::1::", "tcp://10.0.0.5"]
)
def test_nonsense_is_no_host(value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"host must be a host name or an address, .* got {re.escape(repr(value))}"):
        read_host("host", value)


def test_hosts_are_taken_as_spark_writes_them() -> None:
    hosts = ["[::1]", "::1", "10.0.0.5", "driver-svc.ns.svc.cluster.local", "node_7", "fe80::1%eth0", "0.0.0.0"]
    assert [read_host("bind", host) for host in hosts] == ["::1", *hosts[1:]]


@pytest.mark.parametrize("value", ["0.0.0.0", "::", "[::]"])
def test_all_addresses_are_none_that_workers_can_connect_to(value: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"host must be an address that workers can connect to, got {value!r}")
    ):
        read_reachable("host", value)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        65536,
        True,
        1.5,
        "",
        "abc",
        "20000-",
        "-20000",
        "1-2-3",
        "20100-20000",
        (1,) * 3,
        (),
        [5, "6"],
        None,
        {1, 2},
    ],
)
def test_nonsense_is_no_range_of_ports(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"port must be a port from 1 to 65535 or .* got {re.escape(repr(value))}; us"
    ):
        read_ports("port", value)


def test_ports_are_one_or_a_range() -> None:
    values: list[Any] = [20000, "20000", "20000-20100", " 20000 - 20100 ", (20000, 20100), [20000, 20100]]
    assert [read_ports("port", value) for value in values] == [(20000, 20000)] * 2 + [(20000, 20100)] * 4


def test_no_free_port_is_no_error_but_any_other_fault_is() -> None:
    def fail(port: int) -> int:
        raise OSError(errno.EADDRINUSE if port < 5 else errno.ENODEV, "no")

    assert first_free((1, 4), fail) is None
    with pytest.raises(OSError, match="no"):
        first_free((1, 5), fail)


# -- what a worker says of a driver that it does not reach ----------------------------------------


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
    monkeypatch.setattr(endpoint, "PROBE_PATIENCE", 0.05)
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
    monkeypatch.setattr(beginnings, "CONTACT_PATIENCE", 0.1)
    monkeypatch.setattr(client, "Heartbeat", partial(client.Heartbeat, interval=0.05))
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
