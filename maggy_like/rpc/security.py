"""CURVE encryption with keys made per run: a pair of the driver's, and one for each incarnation of a worker.

The driver's public key and a worker's own pair travel to the worker by its engine. A peer that lacks either gets no
frame through: it is turned away in the handshake.
"""

from __future__ import annotations

import zmq

from maggy_like.protocol.task import KeyPair

ZAP_DOMAIN = b"maggy_like"


def new_key_pair() -> KeyPair:
    """A CURVE key pair."""
    public, secret = zmq.curve_keypair()
    return public, secret


def secure_server(socket: zmq.Socket[bytes], keys: KeyPair) -> None:
    """Make a socket speak CURVE, and ask for each peer whether it may come in; call before it binds."""
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_server = True
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an authenticator no connection is accepted


def secure_client(socket: zmq.Socket[bytes], server_key: bytes, keys: KeyPair) -> None:
    """Make a socket speak to the owner of ``server_key`` alone; call before it connects."""
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_serverkey = server_key
