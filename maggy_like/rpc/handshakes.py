"""What happens before a peer's first frame: handshakes, answered and counted."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Container

import zmq

from maggy_like.rpc.allowed import AllowList
from maggy_like.rpc.refusals import Refusals

HANDSHAKE_PATIENCE = 30.0
"""Seconds that a connection gets to shake hands before it is cut off.

Thousands of workers that come at once wait for each other's cryptography. One that is cut off meanwhile begins again,
so that a short patience makes more work the more there is.
"""

_EVENT = struct.Struct("=HI")
_FAILURES = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "no handshake in time",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake without our key",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "key not on the list",
}
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | sum(_FAILURES)
_ROUND = 2000


class Handshakes:
    """Lets peers of the run into a ROUTER socket and counts the others.

    Args:
        socket: Not yet bound.
        allowed: Says who may come in.
        refusals: Where the others are counted.

    Attributes:
        sockets: To be polled for :meth:`attend`.
    """

    def __init__(self, socket: zmq.Socket[bytes], allowed: AllowList, refusals: Refusals) -> None:
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_PATIENCE * 1000))
        self._socket = socket
        self._allowed = allowed
        self._refusals = refusals
        self._monitor = _monitor(socket)
        self._open: deque[float] = deque()  # when connections came whose handshake has not ended
        self._attended = time.monotonic()
        self.sockets = (allowed.socket, self._monitor)

    def attend(self, ready: Container[object]) -> None:
        """Take in what happened; bounded, never waits.

        Args:
            ready: Those of :attr:`sockets` that can be read; to try the others takes time from each message.
        """
        for _ in range(_ROUND if self._allowed.socket in ready else 0):
            if not self._allowed.answer():
                break
        for _ in range(_ROUND if self._monitor in ready else 0):
            try:
                event, _ = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                break
            if event == zmq.EVENT_ACCEPTED:
                self._open.append(time.monotonic())
            elif self._open:
                self._open.pop()
            if event in _FAILURES:
                self._refusals.count(_FAILURES[event])
        # What speaks another protocol is cut off at once, and ZeroMQ tells of no failure: only that no end came.
        now = time.monotonic()
        if (stood_still := now - self._attended) > HANDSHAKE_PATIENCE / 2:  # so may ZeroMQ have, and tell in a moment
            self._open = deque(came + stood_still for came in self._open)
        self._attended = now
        late = now - 2 * HANDSHAKE_PATIENCE
        while self._open and self._open[0] < late:
            self._open.popleft()
            self._refusals.count("not ZeroMQ")

    def close(self) -> None:
        """Close, before the socket itself."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._allowed.socket.close(0)


def _monitor(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """What tells of a socket's handshakes, without a bound on what waits there.

    At a bound libzmq's I/O thread would stand still until somebody reads, and with it every connection.
    """
    address = f"inproc://handshakes-{id(socket)}"
    socket.monitor(address, _WATCHED)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor
