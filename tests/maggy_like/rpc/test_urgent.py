"""What a worker waits for an answer to is read first."""

from __future__ import annotations

import pytest
from wire import hello

from maggy_like.protocol.messages import Finished, Hello, Logged, Reported, ToDriver
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.client import Client
from maggy_like.rpc.server import Server, Unfit

REPORT, LINE, END = Reported(0, 1, "loss", {}), Logged(1, 1, ["a line"]), Finished(1, 1, "returned")


def test_an_end_and_what_its_worker_said_before_pass_the_reports_of_another_by(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("127.0.0.1")
    first, second = (Client(server.address, server.public_key, server.admit(WorkerId(index, 0))) for index in range(2))
    try:
        for index, client in enumerate((first, second)):
            client.introduce(hello(index))
        with monkeypatch.context() as nothing_given:
            nothing_given.setattr("maggy_like.rpc.server.ROUND_SECONDS", 0.0)
            waits(server, first, second, 2)
        assert all(isinstance(message, Hello) for message in given(server, 2))
        with monkeypatch.context() as nothing_given:
            nothing_given.setattr("maggy_like.rpc.server.ROUND_SECONDS", 0.0)
            for _ in range(100):
                first.send(REPORT)
            waits(server, first, second, 100)
            second.send(LINE)
            second.send(END)
            waits(server, first, second, 102)
        assert given(server, 102) == [LINE, END, *[REPORT] * 100]
    finally:
        for client in (first, second):
            monkeypatch.setattr("maggy_like.rpc.client.CLOSE_PATIENCE", 0.0)
            client.close()
        server.close()


def waits(server: Server, first: Client, second: Client, count: int) -> None:
    """Serve until so many frames wait in the driver."""
    for _ in range(2000):
        assert not list(server.poll(0.01))
        first.receive()
        second.receive()
        if len(server._backlog) == count:
            return
    raise AssertionError(f"{len(server._backlog)} of {count} came")


def given(server: Server, count: int) -> list[ToDriver]:
    """What the driver is given of that."""
    messages: list[ToDriver] = []
    for _ in range(500):
        messages += [received.message for received in server.poll(0.01) if not isinstance(received.message, Unfit)]
        if len(messages) >= count:
            break
    return messages
