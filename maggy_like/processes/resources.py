"""What the system gives this process: a working folder, descriptors and memory."""

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
        ConfigError: It was deleted, or moved to where this process cannot see it.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"the working folder of this process was deleted or replaced ({error.strerror}); call os.chdir(...) with a "
            "folder that exists, or start Python again from there"
        ) from error


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


TOO_LITTLE_MEMORY = ("failed to map segment", "cannot allocate memory", "memory allocation still failed", "memoryerror")
"""What loaders say where the address space is too small for a library, in lower case."""

# Measured with RLIMIT_AS on Linux: numpy 2.4, pyarrow 26, pandas 2.3, torch 2.13 with its optimizers.
LEAST_MEMORY = (
    "least for an import alone: numpy 96m, pyarrow 119m, pandas 259m, torch 666m; what a trial needs comes on top"
)


def address_space() -> int | None:
    """The bytes that this process may map, if that is bounded."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def too_small() -> str:
    """What to do where the address space is too small."""
    return (
        "which is too little for this import: raise spark.executor.pyspark.memory, or leave it out (on one machine: "
        f"ulimit -v); {LEAST_MEMORY}"
    )
