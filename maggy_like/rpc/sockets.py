"""The limits of both ends' sockets, and CURVE encryption with a key pair per driver and worker incarnation."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from maggy_like.protocol.task import KeyPair, WorkerId

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


ZAP_DOMAIN = b"maggy_like"


def new_key_pair() -> KeyPair:
    """A CURVE key pair."""
    public, secret = zmq.curve_keypair()
    return public, secret


def secure_server(socket: zmq.Socket[bytes], keys: KeyPair) -> None:
    """Enable CURVE on a socket, with a check of each peer; call before it binds."""
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_server = True
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an authenticator no connection is accepted


def secure_client(socket: zmq.Socket[bytes], server_key: bytes, keys: KeyPair) -> None:
    """Let a socket connect only to the owner of ``server_key``; call before it connects."""
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_serverkey = server_key


class AllowList:
    """Checks for each handshake of ZeroMQ whether the peer's key is a worker's, and which.

    ZeroMQ attaches the answer to every frame of the connection, so that one worker cannot impersonate another. The
    protocol is ZeroMQ's RFC 27. It is served from the same poll loop as the server's socket, so there is neither a
    thread nor a lock; a handshake waits for the driver's loop. Only :meth:`admit` is called from other threads.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._users: dict[bytes, bytes] = {}  # by raw public key
        self._workers: dict[str, WorkerId] = {}  # by user
        self._newest: dict[int, int] = {}  # incarnation by worker
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def admit(self, worker: WorkerId) -> KeyPair:
        """Create a key pair for an incarnation that is about to be launched, and accept it from now on."""
        public, secret = new_key_pair()
        user = f"{worker.index}.{worker.incarnation}"
        self._newest[worker.index] = max(worker.incarnation, self._newest.get(worker.index, 0))
        self._workers[user] = worker
        self._users[z85.decode(public)] = user.encode()
        return public, secret

    def expect(self, worker: WorkerId, public: bytes) -> None:
        """Accept an incarnation whose key pair was created before the run, and that may never connect."""
        user = f"{worker.index}.{worker.incarnation}"
        self._workers[user] = worker
        self._users[z85.decode(public)] = user.encode()

    def has_come(self, worker: WorkerId) -> None:
        """Record that an incarnation has connected, so that older ones of its place are stale."""
        self._newest[worker.index] = max(worker.incarnation, self._newest.get(worker.index, 0))

    def owner(self, frame: zmq.Frame) -> WorkerId:
        """Return the worker whose key was used for the connection of a frame."""
        return self._workers[str(frame.get("User-Id"))]

    def is_newest(self, worker: WorkerId) -> bool:
        """Whether no later incarnation of its place was launched, or has connected."""
        return self._newest.get(worker.index, 0) <= worker.incarnation

    def answer(self) -> bool:
        """Answer one request, if there is one; False if there is none."""
        try:
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        user = self._users.get(credentials[0], b"") if mechanism == b"CURVE" and len(credentials) == 1 else b""
        status, text = (b"200", b"") if user else (b"400", b"unknown key")
        self.socket.send_multipart([version, request, status, text, user, b""])
        return True
