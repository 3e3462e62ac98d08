"""Fetching what comes next while the caller works on what came last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class _End(NamedTuple):
    """What a thread leaves when nothing follows; ``error`` is what ended it."""

    error: BaseException | None = None


def read_ahead(items: Iterator[T], ahead: int = 1) -> Iterator[T]:
    """Yield the items of an iterator, of which a thread fetches the next ones meanwhile.

    The thread starts at once, and is never more than ``ahead`` items before the caller. An error of the iterator is
    raised in its place. A caller that leaves early ends the thread after the item that it is fetching.

    Args:
        items: Only that thread uses it from now on.
        ahead: Items that may wait for the caller.

    Example:
        >>> list(read_ahead(iter("abc")))
        ['a', 'b', 'c']
    """
    fetched: SimpleQueue[T | _End] = SimpleQueue()
    places, is_left = threading.Semaphore(ahead), threading.Event()

    def fetch() -> None:
        while places.acquire() and not is_left.is_set():
            try:
                fetched.put(next(items))
            except StopIteration:
                return fetched.put(_End())
            except BaseException as error:
                return fetched.put(_End(error))

    threading.Thread(target=fetch, name="maggy_like-read-ahead", daemon=True).start()
    return _drain(fetched, places, is_left)


def _drain(fetched: SimpleQueue[T | _End], places: threading.Semaphore, is_left: threading.Event) -> Iterator[T]:
    try:
        while not isinstance(item := fetched.get(), _End):
            places.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        is_left.set()
        places.release()
