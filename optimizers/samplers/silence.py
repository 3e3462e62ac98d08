"""Silence about what other libraries do for an optimizer, since the user did not call them."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import wraps

Enter = Callable[[], AbstractContextManager[object]]


def shared(enter: Enter) -> Enter:
    """Have threads that are in a context at the same time share it, from the first to enter to the last to leave.

    A context that changes a setting of the process and restores it, such as ``warnings.catch_warnings``, cannot overlap
    with itself. If the thread that entered first leaves first, the other one restores the changed setting for good.
    """
    lock, threads, within = threading.Lock(), 0, ExitStack()

    @wraps(enter)
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        nonlocal threads
        with lock:
            if not threads:
                within.enter_context(enter())
            threads += 1
        try:
            yield
        finally:
            with lock:
                threads -= 1
                if not threads:
                    within.close()

    return entered


@shared
@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore all warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
