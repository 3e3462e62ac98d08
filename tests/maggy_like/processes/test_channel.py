from __future__ import annotations

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from maggy_like.processes.channel import Channel


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_messages_arrive_whole_and_in_order(messages: list[bytes]) -> None:
    mine, raw = Channel.pair()
    theirs = Channel(raw)
    for message in messages:
        mine.send(message)
    assert [theirs.receive() for _ in messages] == messages
    mine.close()
    assert theirs.receive() is None
    theirs.close()


def test_drain_takes_whole_messages_and_tells_the_end() -> None:
    mine, raw = Channel.pair()
    assert mine.drain() == ([], True)
    raw.sendall(b"\0\0\0\3abc\0\0\0\2d")
    assert mine.drain() == ([b"abc"], True)
    raw.sendall(b"e")
    raw.close()
    assert mine.drain() == ([b"de"], True)
    assert mine.drain() == ([], False)
    mine.close()


def test_several_threads_may_send() -> None:
    mine, raw = Channel.pair()
    theirs = Channel(raw)
    threads = [threading.Thread(target=mine.send, args=(bytes([n]) * 50_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    received = {theirs.receive() for _ in threads}
    for thread in threads:
        thread.join()
    assert received == {bytes([n]) * 50_000 for n in range(8)}
    for end in (mine, theirs):
        end.close()
    assert isinstance(raw, socket.socket)


def test_what_is_posted_waits_for_nobody_and_arrives_whole_and_in_order() -> None:
    mine, raw = Channel.pair()
    theirs = Channel(raw)
    messages = [bytes([n]) * 300_000 for n in range(8)]
    for message in messages:
        mine.post(message)
    assert mine.has_unsent
    received: list[bytes] = []
    while len(received) < len(messages):
        received += theirs.drain()[0]
        mine.flush()
    assert received == messages
    assert not mine.has_unsent
    for end in (mine, theirs):
        end.close()


def test_what_is_posted_to_one_that_is_gone_is_dropped() -> None:
    mine, raw = Channel.pair()
    mine.post(bytes(1 << 20))
    raw.close()
    mine.flush()
    assert not mine.has_unsent
    mine.post(b"late")
    assert not mine.has_unsent
    assert mine.drain() == ([], False)
    mine.close()
