"""A live server that answers, and workers of it, for the tests of the wire."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq

from maggy_like.protocol.messages import PROTOCOL_VERSION, Beat, Decided, Goodbye, Hello, Reported, ToDriver, ToWorker
from maggy_like.protocol.task import KeyPair, WorkerId
from maggy_like.rpc.client import Client
from maggy_like.rpc.server import Server

HEARTBEAT = 0.2


def hello(index: int = 0, incarnation: int = 0, *, version: int = PROTOCOL_VERSION) -> Hello:
    return Hello(version, index, incarnation, "host", 1, ["0"], None)


class EchoServer:
    """Serves in a thread: answers each report with a verdict, each beat with a beat, and remembers what it took."""

    def __init__(self, host: str = "127.0.0.1", **options: Any) -> None:
        self.server = Server(host, **options)
        self._keys: dict[WorkerId, KeyPair] = {}
        self.taken: list[tuple[int, ToDriver]] = []
        self._stop = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def keys(self, index: int, incarnation: int = 0) -> KeyPair:
        """The keys of an incarnation; it counts as launched once they were asked for."""
        worker = WorkerId(index, incarnation)
        if worker not in self._keys:
            self._keys[worker] = self.server.admit(worker)
        return self._keys[worker]

    def steps(self, index: int) -> list[int]:
        """The attempt numbers of the reports that were taken from a worker, in order."""
        return [m.attempt for i, m in list(self.taken) if i == index and isinstance(m, Reported)]

    def close(self) -> None:
        self._stop = True
        self.server.wake()
        self._thread.join()
        self.server.close()

    def _serve(self) -> None:
        while not self._stop:
            for received in self.server.poll(0.1):
                self.taken.append((received.worker.index, received.message))
                if isinstance(received.message, Reported):
                    report = received.message
                    self.server.send(received.worker, Decided(report.trial, report.attempt, False))
                elif isinstance(received.message, Beat):
                    self.server.send(received.worker, Beat())
            self.server.acknowledge()


@contextmanager
def echo_server(host: str = "127.0.0.1") -> Iterator[EchoServer]:
    echo = EchoServer(host)
    try:
        yield echo
    finally:
        echo.close()


class Peer:
    """A worker without an agent: reports, and waits for the verdicts."""

    def __init__(self, echo: EchoServer, index: int = 0, *, address: str | None = None, incarnation: int = 0) -> None:
        keys, ipv6 = echo.keys(index, incarnation), echo.server.is_ipv6
        self.client = Client(address or echo.address, echo.server.public_key, keys, ipv6=ipv6)
        self.client.introduce(hello(index, incarnation))
        self.answers: list[ToWorker] = []
        self.reports = 0
        self._poller = zmq.Poller()
        for watched in self.client.sockets:
            self._poller.register(watched, zmq.POLLIN)
        self._beat_at = 0.0

    def report(self) -> None:
        self.reports += 1
        self.client.send(Reported(0, self.reports, "loss", {"loss": ([self.reports], [0.5])}, awaiting=True))

    def attend(self, seconds: float = 0.02) -> None:
        """Serve the socket for one turn, as an agent does."""
        self._poller.poll(int(seconds * 1000))
        self.answers += self.client.receive()
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + HEARTBEAT
            self.client.beat()

    @property
    def decided(self) -> list[int]:
        return [answer.attempt for answer in self.answers if isinstance(answer, Decided)]

    def rounds(self, count: int, seconds: float = 300.0) -> float:
        """Report and wait for the answer ``count`` times; the seconds that it took."""
        start = time.monotonic()
        for _ in range(count):
            self.report()
            self.wait(lambda: len(self.decided) == self.reports, seconds)
        return time.monotonic() - start

    def wait(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.attend()

    def close(self) -> None:
        self.client.send(Goodbye())
        self.client.close()


@contextmanager
def peer(echo: EchoServer, index: int = 0, *, address: str | None = None, incarnation: int = 0) -> Iterator[Peer]:
    made = Peer(echo, index, address=address, incarnation=incarnation)
    try:
        yield made
    finally:
        made.close()


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until something is so that another thread brings about; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


class Proxy:
    """A TCP proxy in front of a port, which can break what goes through it.

    Args:
        port: Of this machine.
        at: Where it listens.
    """

    def __init__(self, port: int, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._port = port
        self._listener = socket.create_server(at)
        self.address = f"tcp://{at[0]}:{self._listener.getsockname()[1]}"
        self.stalled = threading.Event()
        self.connections = 0
        self._open: list[socket.socket] = []
        self._closed = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def reset(self) -> None:
        """Break all connections; what is under way in them is lost."""
        for end in list(self._open):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, not a farewell
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self.stalled.clear()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            self._open += [near, far]
            self.connections += 1  # whoever waits for it may reset it at once
            pair = threading.Barrier(2)
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._carry, args=(source, sink, pair))
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, pair: threading.Barrier) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while self.stalled.is_set():
                    time.sleep(0.01)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        if pair.wait() == 0:
            for end in (source, sink):
                self._open.remove(end)
                end.close()


@contextmanager
def proxy(port: int, at: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[Proxy]:
    made = Proxy(port, at)
    try:
        yield made
    finally:
        made.close()
