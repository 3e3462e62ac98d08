"""CURVE encryption: a key pair per driver and per incarnation of a worker, and the server's allow-list."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from maggy_like.protocol.task import KeyPair, WorkerId

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

    Args:
        context: The server's own.
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
