"""Keys made per run: CURVE encryption, and an allow-list of one key, the run's own workers'.

The driver's public key and the workers' key pair travel to the workers inside the engine's own closure. A peer that
lacks either gets no frame through: it is turned away in the handshake.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

ZAP_DOMAIN = b"maggy_like"

KeyPair = tuple[bytes, bytes]
"""Public and secret CURVE key, 40 bytes of Z85 text each."""


def new_key_pair() -> KeyPair:
    """A CURVE key pair."""
    public, secret = zmq.curve_keypair()
    return public, secret


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run.

    Attributes:
        server: The driver's pair.
        client: The pair that all workers of the run have in common.
    """

    server: KeyPair = field(default_factory=new_key_pair, repr=False)
    client: KeyPair = field(default_factory=new_key_pair, repr=False)


def secure_server(socket: zmq.Socket[bytes], keys: RunKeys) -> None:
    """Make a socket speak CURVE, and ask for each peer whether it may come in; call before it binds."""
    socket.curve_publickey, socket.curve_secretkey = keys.server
    socket.curve_server = True
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody to ask: nobody comes in


def secure_client(socket: zmq.Socket[bytes], server_key: bytes, keys: KeyPair) -> None:
    """Make a socket speak to the owner of ``server_key`` alone; call before it connects."""
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_serverkey = server_key


class AllowList:
    """Answers ZeroMQ's question for each handshake whether the peer's key is the run's.

    It follows ZeroMQ's RFC 27. It is served from the same poll loop as the server's socket, so that there is neither
    a thread nor a lock; a handshake waits for as long as the driver's loop does.

    Args:
        context: The server's own.
        client_key: The public key that may come in.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], client_key: bytes) -> None:
        self._key = z85.decode(client_key)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> bool:
        """Answer one question, if there is one; False when there is none."""
        try:
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        known = mechanism == b"CURVE" and len(credentials) == 1 and hmac.compare_digest(credentials[0], self._key)
        status, text = (b"200", b"") if known else (b"400", b"unknown key")
        self.socket.send_multipart([version, request, status, text, b"", b""])
        return True
