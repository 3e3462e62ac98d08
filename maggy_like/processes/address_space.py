"""How much memory a process may map, and what to say where that is too little for an import."""

from __future__ import annotations

import resource

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
