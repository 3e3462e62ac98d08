"""A Spark Connect session's server: where it is."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from maggy_like.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 15002
"""That of a Spark Connect server whose URL names none."""


def server_endpoint(session: SparkSession) -> tuple[str, int]:
    """Host and port of the server that a Spark Connect session talks to, from the client that does the talking.

    Raises:
        EngineError: The session was made with a channel builder that does not tell.
    """
    builder = session.client._builder
    try:
        # A builder of one's own need not have an endpoint. Hosts that are IPv6 addresses stand in brackets.
        parts = urlsplit(f"//{getattr(builder, 'endpoint', None) or builder.host}")
        host, port = parts.hostname, parts.port
    except Exception:  # pyspark's own base class fails with an AttributeError where it means to say that
        host = port = None
    if not host:
        raise EngineError(
            f"the {type(builder).__name__} of this Spark Connect session does not tell its server's address, towards "
            "which the workers' way to this machine lies; pass engine=SparkEngine(host=...) with that of this machine"
        )
    return host, port or DEFAULT_PORT


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which ``host`` is reached (no packet is sent).

    Raises:
        EngineError: The name is unknown, or there is no way there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        # IPv4 first: not every executor has IPv6.
        for family, kind, protocol, _, target in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
            except OSError as error:
                reason = error
    except OSError as error:
        reason = error
    raise EngineError(
        f"no way from this machine to the Spark Connect server's host {host!r} ({reason.strerror or reason}); pass "
        "engine=SparkEngine(host=...) with the address at which workers reach this machine"
    )
