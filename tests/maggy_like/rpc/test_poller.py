"""What a watch calls, and when."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial

import pytest

from maggy_like.rpc.client import Poller


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    yield mine, theirs
    mine.close()
    theirs.close()


def test_each_handler_is_called_for_what_it_waits_for(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    called: list[str] = []
    watch = Poller()
    watch.add(mine.fileno(), partial(called.append, "read"))

    def poll() -> list[str]:
        called.clear()
        watch.poll(0.0)
        return list(called)

    assert poll() == []
    watch.when_writable(mine.fileno(), partial(called.append, "write"))
    assert poll() == ["write"]
    theirs.send(b"x")
    assert poll() == ["write", "read"]
    watch.pause(mine.fileno(), True)
    assert poll() == ["write"]
    watch.when_writable(mine.fileno(), None)
    assert poll() == []
    watch.pause(mine.fileno(), False)
    assert poll() == ["read"]
    watch.remove(mine.fileno())
    watch.when_writable(mine.fileno(), partial(called.append, "write"))
    watch.pause(mine.fileno(), False)
    assert poll() == []


def test_a_paused_one_that_hangs_up_is_told_to_who_would_write(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    called: list[str] = []
    watch = Poller()
    watch.add(mine.fileno(), partial(called.append, "read"))
    watch.when_writable(mine.fileno(), partial(called.append, "write"))
    watch.pause(mine.fileno(), True)
    theirs.close()
    watch.poll(0.0)
    assert called == ["write"]
