"""The descriptors that this process has open, and how many it may have."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection
from itertools import pairwise


def open_descriptors() -> list[int]:
    """Return the open descriptors; none where the system does not tell."""
    with contextlib.suppress(OSError):  # there is no /proc, or no descriptor is left to read it with
        return [int(name) for name in os.listdir("/proc/self/fd")]
    return []


def descriptor_limit() -> int:
    """How many descriptors this process may have open (``ulimit -n``)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return os.sysconf("SC_OPEN_MAX") if limit == resource.RLIM_INFINITY else limit


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors but some."""
    if found := open_descriptors():
        for fd in set(found).difference(kept):
            with contextlib.suppress(OSError):  # it was that of the listing
                os.close(fd)
    else:
        for low, high in pairwise([-1, *sorted(kept), descriptor_limit()]):
            if low + 1 < high:  # or closerange(0, 0) would close all
                os.closerange(low + 1, high)
