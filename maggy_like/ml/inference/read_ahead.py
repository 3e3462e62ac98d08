"""Fetch the next items in a thread while the caller works on the last one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class _End(NamedTuple):
    """The last entry of a thread; ``error`` is what ended it."""

    error: BaseException | None = None


def read_ahead(items: Iterator[T], ahead: int = 1) -> Iterator[T]:
    """Yield the items of an iterator, while a thread fetches the next ones.

    The thread starts at once, and is never more than ``ahead`` items ahead of the caller. An error of the iterator is
    raised at its position. If the caller leaves early, the thread ends after the item that it is fetching.

    Args:
        items: Iterator, which only the thread uses from now on.
        ahead: Maximum number of items that wait for the caller.

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
