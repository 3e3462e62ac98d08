"""Keys made per run: CURVE encryption, and a secret that tells the run's own workers from others.

The server's public key travels to the workers inside the engine's own closure. A peer without it
gets no byte through; one that has it must also say the run's token before anything else is heard.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import zmq


def _key_pair() -> tuple[bytes, bytes]:
    public, secret = zmq.curve_keypair()
    return public, secret


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The driver's key pair and the run's token.

    Attributes:
        pair: Public and secret CURVE key, 40 bytes of Z85 text each.
        token: The secret that each worker says in its hello.
    """

    pair: tuple[bytes, bytes] = field(default_factory=_key_pair, repr=False)
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    @property
    def public(self) -> bytes:
        """The key that workers need to reach the driver."""
        return self.pair[0]


def secure_server(socket: zmq.Socket[bytes], keys: RunKeys) -> None:
    """Make a socket serve only peers that know the public key; call before it binds."""
    socket.curve_publickey, socket.curve_secretkey = keys.pair
    socket.curve_server = True


def secure_client(socket: zmq.Socket[bytes], server_key: bytes) -> None:
    """Make a socket speak to the owner of ``server_key`` alone; call before it connects."""
    socket.curve_publickey, socket.curve_secretkey = _key_pair()
    socket.curve_serverkey = server_key
