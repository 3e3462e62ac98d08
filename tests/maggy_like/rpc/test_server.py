from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from maggy_like.experiment.inputs import WorkerId
from maggy_like.messages import PROTOCOL_VERSION, Beat, Hello, Ready, Refused, ToDriver, ToWorker, encode
from maggy_like.rpc.client import Client
from maggy_like.rpc.security import RunKeys
from maggy_like.rpc.server import Received, Server


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("127.0.0.1", RunKeys())
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server.address, server._keys.public)
    yield made
    made.close()


def hello(server: Server, *, token: str | None = None, version: int = PROTOCOL_VERSION, epoch: int = 0) -> Hello:
    return Hello(version, token or server._keys.token, 3, epoch, "host", 1, ["0"], True)


def arrived(server: Server, count: int = 1) -> list[Received]:
    """The next messages that are taken; bounded, so that a missing one fails the test."""
    received: list[Received] = []
    for _ in range(50):
        received += server.poll(0.1)
        if len(received) >= count:
            break
    return received


def answer(server: Server, client: Client) -> ToWorker:
    """The next message to the client, while the server goes on serving."""
    for _ in range(50):
        list(server.poll(0.05))
        if messages := client.receive():
            return messages[0]
    raise AssertionError("no answer")


def test_a_worker_that_says_hello_is_heard_and_answered(server: Server, client: Client) -> None:
    client.send(hello(server))
    client.send(Ready())
    worker = WorkerId(3, 0)
    assert arrived(server, 2) == [Received(worker, hello(server)), Received(worker, Ready())]
    server.send(worker, Beat())
    assert answer(server, client) == Beat()


def test_nothing_is_heard_before_the_hello(server: Server, client: Client) -> None:
    client.send(Ready())
    assert answer(server, client) == Refused("unknown peer")
    assert server.refused == {"unknown peer": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"token": "guessed"}, "wrong token"), ({"version": 99}, "protocol version 99, not 1")],
)
def test_strangers_and_foreign_versions_are_refused(
    server: Server, client: Client, change: dict[str, object], reason: str
) -> None:
    client.send(hello(server, **change))  # type: ignore[arg-type]
    assert answer(server, client) == Refused(reason)
    client.send(Ready())
    assert answer(server, client) == Refused("unknown peer")


@pytest.mark.parametrize("frame", [b"", b"\x00", b"garbage", b"\x81\xa4type\xa3foo", encode(Beat())[:-1]])
def test_malformed_frames_are_refused_and_the_loop_goes_on(server: Server, client: Client, frame: bytes) -> None:
    client.forward(frame)
    client.send(hello(server))
    assert len(arrived(server)) == 1
    assert server.refused == {"malformed": 1}


def test_a_peer_without_the_key_gets_nothing_through(server: Server) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(server.address)
        plain.send(encode(hello(server)))
        assert list(server.poll(0.5)) == []
    wrong_key = Client(server.address, RunKeys().public)
    wrong_key.socket.setsockopt(zmq.LINGER, 0)
    wrong_key.send(hello(server))
    assert list(server.poll(0.5)) == []
    wrong_key.close()


def test_wake_ends_a_poll_from_another_thread(server: Server) -> None:
    waker = threading.Timer(0.05, server.wake)
    waker.start()
    assert list(server.poll(30)) == []
    waker.join()


def test_a_worker_that_has_not_come_is_passed_over(server: Server) -> None:
    message: ToDriver = Beat()
    server.send(WorkerId(7, 0), Beat())
    assert encode(message) == encode(Beat())


def test_the_keys_do_not_show() -> None:
    keys = RunKeys()
    assert keys.token not in repr(keys)
    assert keys.pair[1].decode() not in repr(keys)
