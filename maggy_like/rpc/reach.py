"""Why a worker does not reach its driver."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

CANNOT_REACH = "cannot reach the driver at"
"""How the error of a worker without a way to its driver begins; the driver's side looks for it."""

PROBE_PATIENCE = 3.0
"""Seconds that a TCP connection gets to come about."""


def why_unreachable(address: str, *, ipv6: bool = False) -> str:
    """Why no TCP connection comes about, in a few words; empty where one does.

    Args:
        address: ZeroMQ address of the driver.
        ipv6: Whether the driver listens at an IPv6 address.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port
    family = socket.AF_INET6 if ipv6 or ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_V4MAPPED)
    except (OSError, UnicodeError):
        return f"the name {host!r} does not resolve there"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_PATIENCE)
            probe.connect(found[0][4])
    except TimeoutError:
        return "no answer, as where a firewall is between, or the address is wrong"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
