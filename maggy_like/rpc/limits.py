"""Bounds of the wire: sizes, queues, and how soon a dead connection is noticed."""

from __future__ import annotations

import zmq

MAX_FRAME = 16 << 20
"""Bytes of the largest message that either end takes."""

WINDOW = 2 << 20
"""Bytes of a worker that may wait to be acknowledged before it takes nothing more from its trial.

The driver acknowledges what its journal has, so this bounds what a worker that reports more than the driver can take
costs it in memory.
"""

MAX_BACKLOG = 128 << 20
"""Bytes of all workers that wait in the driver itself, past which the rest stays where it is."""

HIGH_WATER = 2000
"""Messages that ZeroMQ itself queues per peer; a link keeps fewer, so that an honest one never fills it."""

ACCEPT_BACKLOG = 4096
"""Connections that the kernel keeps for the driver until it accepts them: workers that come all at once. What overflows
is tried again by the worker's kernel, after a second at the earliest. Kernels cut this to a bound of their own."""

DEAD = 8.0
"""Seconds after which a connection is given up: by a worker that hears nothing of the driver, though it beats; and by
either end's kernel where the other acknowledges nothing. It is less than the driver's patience with a worker, and more
than a busy driver takes to answer."""

KEEPALIVE = 2
"""Seconds between two of TCP's own signs of life, on a connection on which nothing is said. ZeroMQ's would be encrypted
and answered by its thread, and be a good part of what that does for a large gang. And libzmq 4.3.5 aborts the process
where one is due on a connection whose reading was stopped at the high-water mark when the peer hung up."""

RECONNECT, MAX_RECONNECT = 0.05, 1.0
"""Seconds to the first try to connect again, and at most between two."""

_HARD_MAX = 2 * MAX_FRAME


def limit_server(socket: zmq.Socket[bytes]) -> None:
    """Set the bounds of the driver's socket; call before it binds."""
    _limit(socket)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.BACKLOG, ACCEPT_BACKLOG)


def limit_client(socket: zmq.Socket[bytes]) -> None:
    """Set the bounds of a worker's socket; call before it connects."""
    _limit(socket)
    socket.setsockopt(zmq.RCVHWM, 0)  # none: the driver's links bound what comes
    socket.setsockopt(zmq.LINGER, 0)  # a connection that is left must not wait for its end
    socket.setsockopt(zmq.RECONNECT_IVL, _ms(RECONNECT))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _ms(MAX_RECONNECT))
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _ms(MAX_RECONNECT))


def _limit(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, _HARD_MAX)  # past this the connection is cut before the memory is taken
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.TCP_MAXRT, _ms(DEAD))
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, int(DEAD / KEEPALIVE))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
