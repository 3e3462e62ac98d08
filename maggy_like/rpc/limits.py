"""Limits of the communication: sizes, queues, and the time after which a dead connection is noticed."""

from __future__ import annotations

import zmq

MAX_FRAME = 16 << 20
"""Maximum bytes of a message."""

WINDOW = 2 << 20
"""Maximum unacknowledged bytes of a worker, above which it reads nothing more from its trial.

The driver acknowledges what its journal has, so this limits the driver's memory for a worker that reports too fast.
"""

MAX_BACKLOG = 128 << 20
"""Maximum bytes of all workers that wait in the driver; the rest stays in the sockets."""

HIGH_WATER = 2000
"""Number of messages that ZeroMQ itself queues per peer; a link keeps fewer, so that a correct one never fills it."""

ACCEPT_BACKLOG = 4096
"""Number of connections that the kernel queues for the driver, for workers that connect at once. The worker's kernel
retries others after a second or more. Kernels limit this number themselves."""

DEAD = 8.0
"""Seconds after which a connection is abandoned: by a worker without messages of the driver despite heartbeats, and by
either end's kernel without acknowledgements. It is less than the driver's patience with a worker, and more than a busy
driver takes to answer."""

KEEPALIVE = 2
"""Seconds between two keepalives of TCP on a silent connection. ZeroMQ's own would be encrypted and answered by its
thread, which would be a large part of its work for thousands of workers. And libzmq 4.3.5 aborts the process if one is
due on a connection whose reading was stopped at the high-water mark when the peer hung up."""

RECONNECT, MAX_RECONNECT = 0.05, 1.0
"""Seconds before the first try to connect again, and the longest pause between two."""

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
