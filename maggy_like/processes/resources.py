"""What the system gives this process: its working folder, descriptors and memory."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection
from itertools import pairwise

from maggy_like.errors import ConfigError


def working_folder() -> str:
    """Return the working folder.

    Raises:
        ConfigError: It was deleted, or moved to a place that this process cannot see.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"the working folder of this process was deleted or replaced ({error.strerror}); call os.chdir(...) with a "
            "folder that exists, or start Python again from there"
        ) from error


def open_descriptors() -> list[int]:
    """Return the open descriptors; empty if the system does not list them."""
    with contextlib.suppress(OSError):  # without /proc, or without a free descriptor for reading it
        return [int(name) for name in os.listdir("/proc/self/fd")]
    return []


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open (``ulimit -n``)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return os.sysconf("SC_OPEN_MAX") if limit == resource.RLIM_INFINITY else limit


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors except ``kept``."""
    if found := open_descriptors():
        for fd in set(found).difference(kept):
            with contextlib.suppress(OSError):  # it was the listing's own
                os.close(fd)
    else:
        for low, high in pairwise([-1, *sorted(kept), descriptor_limit()]):
            if low + 1 < high:  # or closerange(0, 0) would close all
                os.closerange(low + 1, high)


TOO_LITTLE_MEMORY = ("failed to map segment", "cannot allocate memory", "memory allocation still failed", "memoryerror")
"""Messages of loaders, in lower case, when the address space is too small for a library."""

# Measured with RLIMIT_AS on Linux: numpy 2.4, pyarrow 26, pandas 2.3, torch 2.13 with its optimizers.
LEAST_MEMORY = "minimum for an import only: numpy 96m, pyarrow 119m, pandas 259m, torch 666m; a trial needs more"


def address_space() -> int | None:
    """Return the bytes that this process may map; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def too_small() -> str:
    """Return what to do if the address space is too small."""
    return (
        "which is too little for this import: raise spark.executor.pyspark.memory or unset it (on one machine, raise "
        f"ulimit -v); {LEAST_MEMORY}"
    )
