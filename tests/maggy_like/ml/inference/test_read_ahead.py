from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from maggy_like.ml.inference.read_ahead import read_ahead


def test_read_ahead_keeps_the_order() -> None:
    assert list(read_ahead(iter(range(100)), ahead=3)) == list(range(100))
    assert list(read_ahead(iter(()))) == []


def test_read_ahead_fetches_while_the_caller_works() -> None:
    is_asked, is_computed = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 0
        is_asked.set()
        assert is_computed.wait(60)  # the caller works on the item before
        yield 1

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert is_asked.wait(60)
    is_computed.set()
    assert list(ahead) == [1]


def test_read_ahead_fetches_no_more_than_asked_for() -> None:
    asked: list[int] = []
    waits = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for item in range(10):
            asked.append(item)
            waits.release()
            yield item

    ahead = read_ahead(items(), ahead=2)
    assert waits.acquire(timeout=60)
    assert waits.acquire(timeout=60)
    assert asked == [0, 1]
    assert next(ahead) == 0
    assert waits.acquire(timeout=60)
    assert asked == [0, 1, 2]


def test_read_ahead_raises_what_the_iterator_raised_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise ValueError("torn")

    ahead = read_ahead(items())
    assert next(ahead) == 0
    with pytest.raises(ValueError, match="torn"):
        next(ahead)


def test_read_ahead_ends_its_thread_when_it_is_left() -> None:
    before = set(threading.enumerate())
    ahead = read_ahead(iter(range(1000)))
    next(ahead)
    (thread,) = set(threading.enumerate()) - before
    ahead.close()  # type: ignore[attr-defined]  # it is a generator
    thread.join(60)
    assert not thread.is_alive()
