"""When Python's garbage collector runs, in processes that make very many objects that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collections(*, freeze: bool = False) -> Iterator[None]:
    """Switch off garbage collection, for imports, a replay or other code that makes very many permanent objects.

    A full collection visits all objects so far, which takes a fifth of the time of an import of torch. With
    ``freeze``, for a process that will be forked, later collections do not visit the objects of this process either: a
    fork's collector would write to the shared pages.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if was_enabled:
            gc.enable()


MANY_WORKERS = 256
"""Number of workers from which full collections are so frequent, and delay so many, that they matter."""

SELDOM = 10, 1, 100
"""Factors for the collector's three thresholds with many workers. The second one stays: a collection of the middle
generation visits as many objects as it allows, and stops the driver for a millisecond per ten thousand of them."""


@contextlib.contextmanager
def short_collections(workers: int) -> Iterator[None]:
    """With many workers, exclude earlier objects of this process from each collection during the run.

    A full collection visits every object that refers to others, and stops the driver's thread meanwhile. A process with
    numpy and scipy has about 300,000 of them, which take 50 ms. Collections also become rarer, since study state and
    workers are hundreds of thousands of objects, of which none becomes garbage in a cycle. If the caller has frozen
    objects, nothing changes.
    """
    if workers < MANY_WORKERS or gc.get_freeze_count():
        yield
        return
    gc.collect()  # existing garbage would stay until the end of the run
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*(times * threshold for times, threshold in zip(SELDOM, thresholds, strict=True)))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
