"""Peers of all bad kinds against a live server that has an honest worker to serve meanwhile."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import zmq
from msgspec.structs import replace
from wire import EchoServer, Peer, echo_server, hello, peer, wait_for

from maggy_like.protocol.messages import Beat, Decided, Ready, Reported, encode
from maggy_like.protocol.task import KeyPair
from maggy_like.rpc import server as handshakes
from maggy_like.rpc.link import Link, bare_frame, new_session
from maggy_like.rpc.server import MAX_ANSWERS, MAX_STRIKES
from maggy_like.rpc.sockets import MAX_FRAME, new_key_pair, secure_client

pytestmark = pytest.mark.e2e


@pytest.fixture
def echo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EchoServer]:
    """Cuts nobody off for being slow, since any peer of a test may be, but where the test gives the patience."""
    monkeypatch.setattr(handshakes, "HANDSHAKE_PATIENCE", getattr(request, "param", 60.0))
    with echo_server() as made:
        yield made


@pytest.fixture
def honest(echo: EchoServer) -> Iterator[Peer]:
    with peer(echo) as made:
        made.rounds(1)
        echo.server.refused.clear()  # where patience is short it may have been cut off itself at first
        yield made
        made.rounds(20)  # it is served as before, whatever the test did


class Dealer:
    """A bare DEALER with the key of worker 1, which says whatever the test wants."""

    def __init__(self, echo: EchoServer, server_key: bytes | None = None, keys: KeyPair | None = None) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket.setsockopt(zmq.SNDTIMEO, 10_000)
        secure_client(self.socket, server_key or echo.server.public_key, keys or echo.keys(1))
        self.events: zmq.Socket[bytes] = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(echo.address)
        self.session = new_session()

    def __enter__(self) -> Dealer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.disable_monitor()
        self._context.destroy(linger=0)

    def answers(self, expected: int) -> int:
        """How many answers come: those that are waited for, and what follows within half a second."""
        count = 0
        while self.socket.poll(500 if count >= expected else 20_000):
            self.socket.recv()
            count += 1
        return count


def hello_frame(session: bytes, index: int = 1) -> bytes:
    return bare_frame(session, encode(hello(index)))


@pytest.mark.parametrize("echo", [1.0], indirect=True, ids=["short"])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "no handshake in time"),
        (b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CUR", "no handshake in time"),  # half of the greeting
        (bytes(range(256)) * 10, "not ZeroMQ"),
        (b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n" * 5, "not ZeroMQ"),
    ],
)
def test_who_does_not_shake_hands_is_cut_off(echo: EchoServer, honest: Peer, said: bytes, reason: str) -> None:
    with socket.create_connection(("127.0.0.1", echo.port), timeout=60) as stranger:
        stranger.sendall(said)
        try:
            while stranger.recv(1000):  # our own greeting, then the end
                pass
        except ConnectionResetError:
            pass
    wait_for(lambda: echo.server.refused == {reason: 1})


@pytest.mark.parametrize("lacking", ["server's key", "client's key"])
def test_without_the_keys_no_frame_gets_through(echo: EchoServer, honest: Peer, lacking: str) -> None:
    wrong = new_key_pair()
    keys = {"server_key": wrong[0]} if lacking == "server's key" else {"keys": wrong}
    with Dealer(echo, **keys) as stranger:  # type: ignore[arg-type]
        with suppress(zmq.Again):  # it may have been turned away already
            stranger.socket.send(hello_frame(stranger.session), zmq.NOBLOCK)
        assert stranger.events.poll(60_000)
        reason = "handshake without our key" if lacking == "server's key" else "key not on the list"
        wait_for(lambda: echo.server.refused == {reason: 1})
    assert [index for index, _ in echo.taken if index != 0] == []


def test_a_peer_without_curve_is_cut_off(echo: EchoServer, honest: Peer) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.setsockopt(zmq.RECONNECT_IVL, -1)
        plain.connect(echo.address)
        with suppress(zmq.Again):
            plain.send(hello_frame(b"8 bytes."), zmq.NOBLOCK)
        # Which of the two ends first gives up decides the word for it.
        reasons = {"handshake without our key": 1}, {"no handshake in time": 1}
        wait_for(lambda: echo.server.refused in reasons)


BAD_FRAMES = {
    "empty": b"",
    "short": b"\0" * 24,
    "random": secrets.token_bytes(200),
    "no msgpack": bare_frame(b"8 bytes.", b"\xc1\xc1"),
    "cut": bare_frame(b"8 bytes.", encode(hello(1))[:-3]),
    "unknown type": bare_frame(b"8 bytes.", b"\x81\xa4type\xa3foo"),
    "wrong field types": bare_frame(b"8 bytes.", encode(hello(1)).replace(b"\xa6worker\x01", b"\xa6worker\xa11")),
    "no text": bare_frame(b"8 bytes.", b"\x81\xa4type\xa4\xff\xff\xff\xff"),
    "deep": bare_frame(b"8 bytes.", b"\x82\xa4type\xa4beat\xa1x" + b"\x91" * 200_000),
    "a long list, it says": bare_frame(b"8 bytes.", b"\x82\xa4type\xa6logged\xa5lines\xdd\xff\xff\xff\xff"),
    "too large": bare_frame(b"8 bytes.", bytes(MAX_FRAME)),
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_malformed_frames_are_refused_and_counted(echo: EchoServer, honest: Peer, frame: bytes) -> None:
    with Dealer(echo) as bad:
        bad.socket.send(frame)
        assert bad.answers(1) == 1
    assert echo.server.refused == {"malformed": 1}


def test_many_frames_in_one_message_are_refused_as_one(echo: EchoServer, honest: Peer) -> None:
    with Dealer(echo) as bad:
        bad.socket.send_multipart([b"x"] * 100_000)
        honest.rounds(20)
        wait_for(lambda: echo.server.refused == {"malformed": 1})


def test_a_frame_past_all_limits_ends_the_connection(echo: EchoServer, honest: Peer) -> None:
    with Dealer(echo) as bad:
        bad.socket.send(bytes(3 * MAX_FRAME))
        assert bad.events.poll(60_000)


def test_a_peer_that_was_never_introduced_is_told_a_few_times_then_not_read(
    echo: EchoServer, honest: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Dealer(echo) as bad:
        for _ in range(MAX_STRIKES + 100):
            bad.socket.send(Link(bad.session).number(encode(Ready())))
        assert bad.answers(MAX_ANSWERS) == MAX_ANSWERS
        wait_for(lambda: echo.server.refused == {"unknown peer": MAX_STRIKES, "muted": 100})
    assert sum("unknown peer" in line for line in caplog.messages) == 1
    shown = caplog.text
    for key in (echo.server.public_key, *echo.keys(0), *echo.keys(1)):
        assert key.decode() not in shown


def test_replayed_frames_are_dropped_on_the_same_and_on_another_connection(echo: EchoServer, honest: Peer) -> None:
    link = Link(new_session())
    report = link.number(encode(Reported(0, 1, "loss", {"loss": ([1], [0.5])}, awaiting=True)))
    frames = [bare_frame(link.session, encode(hello(1))), report]
    with Dealer(echo) as worker, Dealer(echo) as thief:
        for frame in (*frames, *frames):
            worker.socket.send(frame)
        wait_for(lambda: echo.server.refused["repeated"] == 2)
        for frame in frames:
            thief.socket.send(frame)
        wait_for(lambda: echo.server.refused["repeated"] == 4)
        assert thief.answers(0) == 0  # and the worker's own connection still has the orders
        worker.socket.send(link.number(encode(Reported(0, 2, "loss", {"loss": ([2], [0.5])}, awaiting=True))))
        assert worker.answers(3) == 3  # welcome, and a verdict for each report
    assert echo.steps(1) == [1, 2]


@pytest.mark.parametrize("kind", ["garbage", "beats", "demands", "replays", "wild numbers"])
def test_a_flood_leaves_the_honest_worker_its_pace(echo: EchoServer, honest: Peer, kind: str) -> None:
    link = Link(new_session())
    ready = link.number(encode(Ready()))
    wild = Link(link.session)
    for _ in range(50):
        wild.number(b"")
    flood = {
        "garbage": b"garbage",
        "beats": link.bare(encode(Beat())),
        "demands": link.bare(encode(Beat()), again=True),
        "replays": ready,
        "wild numbers": wild.number(encode(Ready())),
    }
    end = threading.Event()
    sent = 0

    def pour() -> None:
        nonlocal sent
        with Dealer(echo) as bad:
            for frame in (hello_frame(link.session), ready):
                bad.socket.send(frame)
            while not end.is_set():
                for _ in range(100):
                    bad.socket.send(flood[kind])
                sent += 100

    calm = statistics.median(seconds_of(honest) for _ in range(200))
    flooder = threading.Thread(target=pour)
    flooder.start()
    try:
        wait_for(lambda: sent > 10_000)
        flooded = statistics.median(seconds_of(honest) for _ in range(200))
    finally:
        end.set()
        flooder.join()
    assert flooded < 10 * calm + 0.01  # three threads on one lock here; benchmarks.fuzz measures with processes
    assert sum(echo.server.refused.values()) > 1_000 or kind == "wild numbers"
    assert echo.taken.count((1, Ready())) <= 1


def seconds_of(worker: Peer) -> float:
    """What a round of a worker takes, in the time that this process has a core: a busy machine does not count."""
    before = time.process_time()
    worker.rounds(1)
    return time.process_time() - before


def test_only_the_given_address_is_served(echo: EchoServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", echo.port), timeout=5)


def test_a_worker_takes_its_connection_back_from_who_took_it(echo: EchoServer) -> None:
    """Who has the worker's session and guesses its next hello takes its connection; the worker takes it back."""
    with peer(echo, 1) as worker:
        worker.rounds(1)
        session = worker.client._link.session
        with Dealer(echo) as thief:
            next_hello = replace(hello(1), connection=worker.client._connections + 1)
            thief.socket.send(bare_frame(session, encode(next_hello)))
            assert thief.answers(1) >= 1
            for _ in range(10):
                worker.client.beat()
            worker.report()
            worker.wait(lambda: worker.decided == [1, 2])
    assert Decided(0, 2, False) in worker.answers


FLOOD_AND_HANG_UP = """
import time
import zmq
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.sockets import secure_client
from maggy_like.rpc.server import Server

server = Server("127.0.0.1")
context = zmq.Context()
flooder = context.socket(zmq.DEALER)
flooder.setsockopt(zmq.SNDHWM, 0)
secure_client(flooder, server.public_key, server.admit(WorkerId(0, 0)))
flooder.connect(server.address)
while not server.refused:
    flooder.send(b"garbage")
    list(server.poll(0.01))
for _ in range(20_000):
    flooder.send(b"garbage")
time.sleep(0.5)  # nobody reads: ZeroMQ itself stops reading
context.destroy(linger=0)
time.sleep(1.5)  # time for what ZeroMQ does with such a connection by itself
while list(server.poll(0.1)):
    pass
server.close()
print("alive")
"""


def test_a_flooder_that_hangs_up_while_it_is_not_read_ends_nothing(run_script: Callable[..., Any]) -> None:
    """It is a process of its own: what this is about aborts one."""
    ran = run_script(FLOOD_AND_HANG_UP, env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert ran.stdout == "alive\n", ran.stderr
