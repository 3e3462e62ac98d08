"""The addresses at which the driver listens and at which workers reach it, which differ behind NAT."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from maggy_like.errors import ConfigError, EngineError

PortRange = tuple[int, int]
"""Lowest and highest port of a range."""

ANY_PORT: PortRange = (0, 0)
"""A free port that the operating system chooses."""

_T = TypeVar("_T")


def shown(ports: PortRange) -> str:
    """Format a range as a user writes it.

    Example:
        >>> shown((20000, 20100)), shown((20000, 20000))
        ('20000-20100', '20000')
    """
    low, high = ports
    return str(low) if low == high else f"{low}-{high}"


def first_free(ports: PortRange, take: Callable[[int], _T]) -> _T | None:
    """Take the first free port of a range, and return the result of ``take``; None if all ports are in use."""
    for port in range(ports[0], ports[1] + 1):
        try:
            return take(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return None


def bracketed(host: str) -> str:
    """Format a host for use before a port.

    Example:
        >>> bracketed("::1"), bracketed("localhost")
        ('[::1]', 'localhost')
    """
    return f"[{host}]" if ":" in host else host


_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the driver."""

    host: str  # name or address that workers receive. They resolve it, not this machine
    bind: str = ""  # name or address of this machine to bind to; empty for ``host``
    ports: PortRange = ANY_PORT  # ports to choose from


def read_host(name: str, value: object) -> str:
    """Parse a host name or an address; from ``[::1]``, as Spark writes it, remove the brackets."""
    if isinstance(value, str):
        host = value.removeprefix("[").removesuffix("]")
        if is_address(host) or (host == value and _HOST_NAME.fullmatch(host)):
            return host
    raise ConfigError(
        f"{name} must be a host name or an address, without a port ('10.0.0.5', 'driver.example.com', '::1'), "
        f"got {value!r}"
    )


def read_reachable(name: str, value: object) -> str:
    """Parse the name or address at which other machines reach this one."""
    host = read_host(name, value)
    if is_address(host) and ipaddress.ip_address(host).is_unspecified:
        raise ConfigError(
            f"{name} must be an address that workers can connect to, got {value!r}; use bind={value!r} to listen at "
            "all addresses"
        )
    return host


def read_ports(name: str, value: object) -> PortRange:
    """Parse a port or a range of ports: ``20000``, ``"20000-20100"`` or ``(20000, 20100)``."""
    ends: tuple[object, ...]
    if isinstance(value, str):
        digits = [part.strip() for part in value.split("-")]
        ends = tuple(int(part) if part.isascii() and part.isdigit() else part for part in digits)
    else:
        ends = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(ends) in (1, 2) and all(type(end) is int for end in ends):
        low, high = int(str(ends[0])), int(str(ends[-1]))
        if 1 <= low <= high <= 65535:
            return low, high
    raise ConfigError(
        f"{name} must be a port from 1 to 65535 or a range of them, lowest first, got {value!r}; use {name}=20000 or "
        f"{name}='20000-20100'"
    )


def is_address(host: str) -> bool:
    """Whether a host is an IPv4 or IPv6 address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def own_address(host: str) -> str:
    """Return the first address of a host name that belongs to this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EngineError(
            f"the driver cannot listen at {host!r}: the name does not resolve on this machine ({error}); use bind= "
            "with an address of this machine, as in SparkEngine(host='what workers reach', bind='10.0.0.5')"
        ) from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if is_own(address):
            return address
    meant = "" if addresses == [host] else f", which is {' or '.join(addresses)}"
    raise EngineError(
        f"the driver cannot listen at {host!r}{meant}: that is not an address of this machine; use bind= with one of "
        f"its addresses, as in SparkEngine(host={host!r}, bind='10.0.0.5'), or bind='0.0.0.0' for all"
    )


def resolves(host: str) -> bool:
    """Whether this machine can resolve a host; an address resolves to itself."""
    try:
        return bool(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def is_own(address: str) -> bool:
    """Whether this machine has an address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def listens_here(host: str) -> bool:
    """Whether a host is a name or address of this machine, so that a server can bind to it."""
    try:
        own_address(host)
    except EngineError:
        return False
    return True


def take_port(address: str, ports: PortRange, take: Callable[[int], int]) -> int:
    """Take the first free port of ``SparkEngine(port=)``. ``take`` raises OSError if it cannot bind to one."""
    low, high = ports
    try:
        if (taken := first_free(ports, take)) is not None:
            return taken
    except PermissionError:
        raise EngineError(
            f"port must be at least 1024 for this user, got {shown(ports)}; use other ports, as in port='20000-20100'"
        ) from None
    which, remedy = ("this port", "another") if low == high else ("each of these ports", "others")
    raise EngineError(
        f"port must be free at {address}, got {shown(ports)}, and {which} is taken; use {remedy}, or a wider range "
        f"such as port='{low}-{min(65535, high + 100)}'"
    )


CANNOT_REACH = "cannot reach the driver at"
"""How the error of a worker without a way to its driver begins; the driver's side looks for it."""

PROBE_PATIENCE = 3.0
"""Seconds that a TCP connection gets to come about."""


def why_unreachable(address: str, *, ipv6: bool = False) -> str:
    """Why no TCP connection comes about, in a few words; empty where one does."""
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
