"""Python's garbage collector, kept from what a large gang would wait for."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

LARGE_GANG = 256
"""Workers from which on a full collection comes so often, and is waited for by so many, that it counts."""

SELDOM = 10, 1, 100
"""By how much the collector's three thresholds are higher then. The second stays: a collection of the middle generation
looks at as many objects as that lets gather, and stops the driver for a millisecond for each ten thousand of them."""


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """For what makes very many objects that stay, such as a replay: no collection finds anything in them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def short_collections(workers: int) -> Iterator[None]:
    """For a large gang: leave out of each collection what this process had before, which is most of it.

    A full collection looks at every object that holds others (a process with numpy and scipy has some 300,000, and
    takes 50 ms for them), and stops the driver's thread meanwhile. What was there when the run began is looked at again
    after it. Collections come seldom besides: the ledger and the gang are hundreds of thousands of objects, none of
    which becomes garbage in a circle. Where the caller froze objects by himself, nothing is changed.
    """
    if workers < LARGE_GANG or gc.get_freeze_count():
        yield
        return
    gc.collect()  # what is garbage already would stay for as long as the run
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*(times * threshold for times, threshold in zip(SELDOM, thresholds, strict=True)))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
