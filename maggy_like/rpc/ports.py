"""Ranges of ports."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

PortRange = tuple[int, int]
"""The lowest and the highest of the ports that may be taken."""

ANY_PORT: PortRange = (0, 0)
"""A free port that the operating system chooses."""

_T = TypeVar("_T")


def shown(ports: PortRange) -> str:
    """A range as a user writes it.

    Example:
        >>> shown((20000, 20100)), shown((20000, 20000))
        ('20000-20100', '20000')
    """
    low, high = ports
    return str(low) if low == high else f"{low}-{high}"


def first_free(ports: PortRange, take: Callable[[int], _T]) -> _T | None:
    """Take the first free port of a range.

    Args:
        ports: The range.
        take: Listens at a port.

    Returns:
        What ``take`` returned; None if each port is in use.

    Raises:
        OSError: ``take`` failed for another cause.
    """
    for port in range(ports[0], ports[1] + 1):
        try:
            return take(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return None


def bracketed(host: str) -> str:
    """A host as it stands before a port.

    Example:
        >>> bracketed("::1"), bracketed("localhost")
        ('[::1]', 'localhost')
    """
    return f"[{host}]" if ":" in host else host
