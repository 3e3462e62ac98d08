"""The driver's end of the wire: frames in, typed messages out."""

from __future__ import annotations

import hmac
import logging
import socket as sockets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import zmq

from maggy_like.experiment.inputs import WorkerId
from maggy_like.messages import (
    PROTOCOL_VERSION,
    Hello,
    Refused,
    ToDriver,
    ToWorker,
    decode_to_driver,
    encode,
)
from maggy_like.rpc.security import RunKeys, secure_server

_log = logging.getLogger(__name__)

MAX_FRAME = 64 << 20
"""Bytes of the largest frame that is taken."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a worker that has introduced itself."""

    worker: WorkerId
    message: ToDriver


class Server:
    """A ROUTER socket. Used from the driver's thread, but for :meth:`wake`.

    Args:
        host: Address to bind to: the one that the workers reach, not all.
        keys: The run's keys.

    Attributes:
        address: Where workers connect to.
        refused: Frames that were not taken, by reason.
    """

    def __init__(self, host: str, keys: RunKeys) -> None:
        self._keys = keys
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
        if ":" in host:
            self._socket.setsockopt(zmq.IPV6, 1)
        secure_server(self._socket, keys)
        bracketed = f"[{host}]" if ":" in host else host
        port = self._socket.bind_to_random_port(f"tcp://{bracketed}")
        self.address = f"tcp://{bracketed}:{port}"
        self.refused: Counter[str] = Counter()
        self._workers: dict[bytes, WorkerId] = {}
        self._routes: dict[WorkerId, bytes] = {}
        self._wake_read, self._wake_write = sockets.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read.fileno(), zmq.POLLIN)

    def wake(self) -> None:
        """Make :meth:`poll` return soon; from any thread."""
        try:
            self._wake_write.send(b"w")
        except OSError:  # full: it is awake anyway; closed: nobody sleeps
            return

    def poll(self, timeout: float) -> Iterator[Received]:
        """Wait up to ``timeout`` seconds, then give what has arrived, at most 1,000 messages."""
        ready = dict(self._poller.poll(int(timeout * 1000)))
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(4096)
        if self._socket not in ready:
            return
        for _ in range(1000):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            received = self._read(identity, frames)
            if received is not None:
                yield received

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """Send to a worker; one that never introduced itself or has left is passed over."""
        identity = self._routes.get(worker)
        if identity is not None:
            self._socket.send_multipart([identity, encode(message)])

    def close(self) -> None:
        """Send what is left for up to half a second, then close the port."""
        self._socket.close()
        self._context.term()
        self._wake_read.close()
        self._wake_write.close()

    def _read(self, identity: bytes, frames: list[bytes]) -> Received | None:
        try:
            (frame,) = frames
            message = decode_to_driver(frame)
        except (msgspec.DecodeError, ValueError):
            self._refuse(identity, "malformed")
            return None
        if isinstance(message, Hello):
            return self._greet(identity, message)
        worker = self._workers.get(identity)
        if worker is None:
            self._refuse(identity, "unknown peer")
            return None
        return Received(worker, message)

    def _greet(self, identity: bytes, hello: Hello) -> Received | None:
        if not hmac.compare_digest(hello.token.encode(), self._keys.token.encode()):
            self._refuse(identity, "wrong token")
            return None
        if hello.version != PROTOCOL_VERSION:
            self._refuse(identity, f"protocol version {hello.version}, not {PROTOCOL_VERSION}")
            return None
        worker = WorkerId(hello.worker, hello.epoch)
        self._workers[identity] = worker
        self._routes[worker] = identity
        return Received(worker, hello)

    def _refuse(self, identity: bytes, reason: str) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1:  # once a kind: a flood must not become a flood of log lines
            _log.warning("refused a message: %s", reason)
        try:
            self._socket.send_multipart([identity, encode(Refused(reason))], zmq.NOBLOCK)
        except zmq.ZMQError:
            return
