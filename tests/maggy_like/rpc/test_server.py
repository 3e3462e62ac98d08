"""The server of a driver: who is heard, what is answered, and whose frames come first."""

from __future__ import annotations

import socket as sockets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from wire import hello

from maggy_like import __version__
from maggy_like.errors import ConfigError
from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Assign,
    Beat,
    Checkpointed,
    Finished,
    Goodbye,
    Hello,
    Logged,
    Ready,
    Refused,
    Reported,
    Stop,
    ToDriver,
    ToWorker,
    encode,
    own_versions,
)
from maggy_like.protocol.task import KeyPair, WorkerContext, WorkerId, WorkerTask
from maggy_like.rpc import server as handshakes
from maggy_like.rpc import server as module
from maggy_like.rpc.client import Client
from maggy_like.rpc.server import FRAME_COST, FairBacklog, Received, Server, Unfit
from maggy_like.rpc.sockets import MAX_FRAME, new_key_pair

WORKER = WorkerId(3, 0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(handshakes, "HANDSHAKE_PATIENCE", 60.0)  # nobody is cut off, and counted, for being slow
    made = Server("127.0.0.1")
    yield made
    made.close()


def introduced(server: Server, message: Any, keys: KeyPair | None = None) -> Client:
    """A client that has introduced itself, with a key of its own if not given one."""
    keys = keys or server.admit(WorkerId(message.worker, message.incarnation))
    made = Client(server.address, server.public_key, keys)
    made.introduce(message)
    return made


Connect = Callable[..., Client]


@pytest.fixture
def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Such a client, which is closed in the end."""
    monkeypatch.setattr("maggy_like.rpc.client.CLOSE_PATIENCE", 0.0)  # nobody acknowledges what it has said last
    clients: list[Client] = []

    def make(*args: Any) -> Client:
        clients.append(introduced(server, *args))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect(hello(3))


def arrived(server: Server, client: Client, count: int = 1) -> list[Received]:
    """The next messages that are taken; bounded, so that a missing one fails the test."""
    received: list[Received] = []
    deadline = time.monotonic() + 60
    while len(received) < count and time.monotonic() < deadline:
        received += server.poll(0.01)
        server.acknowledge()
        client.receive()
    return received


def answer(server: Server, client: Client) -> ToWorker:
    """The next message to the client, while the server goes on serving."""
    for _ in range(500):
        list(server.poll(0.01))
        server.acknowledge()
        if messages := client.receive():
            return messages[0]
    raise AssertionError("no answer")


def test_a_worker_that_says_hello_is_heard_and_answered(server: Server, client: Client) -> None:
    client.send(Ready())
    assert arrived(server, client, 2) == [Received(WORKER, hello(3)), Received(WORKER, Ready())]
    server.send(WORKER, Stop(1, 1))
    assert answer(server, client) == Stop(1, 1)


@pytest.mark.parametrize("name", [b"../../../a.so", b"00004/2-1.pkl", b"00003/1-1.pkl", b"file:///a.pkl"])
def test_a_state_that_the_attempt_cannot_have_saved_is_refused_and_changes_nothing(
    server: Server, client: Client, name: bytes
) -> None:
    """A worker that claims it would have an honest one unpickle or remove what it names."""
    honest = encode(Checkpointed(3, 2, 1, "00003/2-1.pkl"))
    client.forward(honest.replace(b"00003/2-1.pkl", name))
    for _ in range(500):
        assert [it.message for it in server.poll(0.01) if not isinstance(it.message, Hello | Beat)] == []
        client.receive()
        if server.refused:
            break
    assert server.refused == {"malformed": 1}


def said_of(server: Server, stranger: Client) -> tuple[str, Unfit]:
    """What a worker that is turned away is told, and what the driver is told of it."""
    received: list[Received] = []
    for _ in range(500):
        received += server.poll(0.01)
        for message in stranger.receive():
            assert isinstance(message, Refused)
            [told] = received
            assert told.worker == WORKER
            assert isinstance(told.message, Unfit)
            return message.reason, told.message
    raise AssertionError("no answer")


class FutureHello(msgspec.Struct, tag="hello"):
    """A hello as another version may have it: with fields that nobody knows here, and without some that are."""

    versions: Any
    version: int = PROTOCOL_VERSION + 1
    host: str = "far"
    planet: str = "mars"
    connection: int = 1


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"package": "0.0.9", "home": "/opt/old"}, "the worker 0.0.9 (/opt/old)"),
        (None, "the worker an unknown version"),
        (["of", "another", "form"], "the worker an unknown version"),
    ],
)
def test_a_hello_of_another_protocol_can_be_read_and_both_versions_are_told(
    server: Server, connect: Connect, versions: Any, says: str
) -> None:
    stranger = connect(FutureHello(versions), server.admit(WORKER))
    refused, told = said_of(server, stranger)
    assert refused == told.why
    assert told.host == "far"
    assert f"the driver has maggy_like {__version__} (" in refused
    assert says in refused
    assert f"versions {PROTOCOL_VERSION} and {PROTOCOL_VERSION + 1} of the protocol" in refused
    assert "--py-files" in refused
    assert server.refused == {"foreign protocol version": 1}


OWN = own_versions()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            {"package": "0.0.9", "home": "/opt/old"},
            [f"the driver has maggy_like {__version__} ({OWN.home}) and the worker 0.0.9 (/opt/old)"],
        ),
        (
            {"python": "3.8", "executable": "/usr/bin/python3"},
            [f"the driver runs Python {OWN.python} (", "the worker Python 3.8 (/usr/bin/python3)", "PYSPARK_PYTHON"],
        ),
    ],
    ids=["maggy_like", "Python"],
)
def test_another_version_is_turned_away_and_both_are_told(
    server: Server, connect: Connect, other: dict[str, str], says: list[str]
) -> None:
    assert OWN.python != "3.8"
    stranger = connect(msgspec.structs.replace(hello(3), versions=msgspec.structs.replace(OWN, **other)))
    refused, told = said_of(server, stranger)
    assert refused == told.why
    assert [text for text in says if text not in refused] == []


def test_the_same_versions_are_welcome(server: Server, connect: Connect) -> None:
    worker = connect(same := msgspec.structs.replace(hello(3), versions=own_versions()))
    assert arrived(server, worker, 1) == [Received(WORKER, same)]


@pytest.mark.parametrize(("index", "incarnation"), [(3, 1), (3, 10**6), (2, 0), (2, 1), (99, 0)])
def test_a_worker_says_hello_for_no_other_place_and_no_other_incarnation(
    server: Server, connect: Connect, client: Client, index: int, incarnation: int
) -> None:
    server.admit(WorkerId(2, 0))
    thief = connect(hello(index, incarnation), server.admit(WorkerId(1, 0)))
    assert answer(server, thief) == Refused("speaks for another worker")
    own = server.admit(WorkerId(3, 1))  # the place is still free for who was launched
    newer = connect(hello(3, 1), own)
    while not (heard := [it for it in server.poll(0.01) if it.worker == WorkerId(3, 1)]):
        newer.receive()
    assert heard == [Received(WorkerId(3, 1), hello(3, 1))]


def test_a_worker_says_nothing_in_the_session_of_another(server: Server, connect: Connect, client: Client) -> None:
    assert arrived(server, client) == [Received(WORKER, hello(3))]
    thief = connect(hello(1))
    arrived(server, thief)
    server.send(WorkerId(1, 0), Stop(1, 1))
    assert answer(server, thief) == Stop(1, 1)
    thief._link = client._link  # all that it could have learned, but for the key
    thief.send(Ready())
    for _ in range(500):
        assert list(server.poll(0.01)) == []
        if server.refused:
            break
    assert server.refused == {"speaks for another worker": 1}


@pytest.mark.parametrize("incarnation", [0, 1])
def test_another_process_with_the_same_key_or_an_older_one_is_stale(
    server: Server, connect: Connect, incarnation: int
) -> None:
    keys = {number: server.admit(WorkerId(3, number)) for number in (0, 1)}
    first = connect(hello(3, 1), keys[1])
    assert arrived(server, first) == [Received(WorkerId(3, 1), hello(3, 1))]
    second = connect(hello(3, incarnation), keys[incarnation])
    assert answer(server, second) == Refused("stale incarnation")
    first.send(Ready())
    assert arrived(server, first) == [Received(WorkerId(3, 1), Ready())]


def test_what_was_replaced_before_it_came_is_stale(server: Server, connect: Connect) -> None:
    """An older incarnation that is late takes the place of no newer one that is on its way."""
    old = server.admit(WorkerId(3, 0))
    server.admit(WorkerId(3, 1))
    late = connect(hello(3, 0), old)
    assert answer(server, late) == Refused("stale incarnation")


def test_a_newer_incarnation_takes_the_place_and_the_older_is_refused(
    server: Server, connect: Connect, client: Client
) -> None:
    arrived(server, client)
    newer = connect(hello(3, 1))
    assert arrived(server, newer) == [Received(WorkerId(3, 1), hello(3, 1))]
    server.send(WORKER, Stop(1, 1))  # passed over: nobody must get the other's orders
    client.send(Ready())
    assert answer(server, client) == Refused("unknown peer")


def test_much_that_comes_in_is_acknowledged_at_once(server: Server, client: Client) -> None:
    arrived(server, client)
    for _ in range(15):
        client.forward(encode(Logged(0, 1, ["x" * 1000] * 100)))
    assert client.is_crowded
    assert not client.is_full
    arrived(server, client)
    for _ in range(500):
        if not client.is_crowded:
            break
        list(server.poll(0.01))
        server.acknowledge()
        client.receive()
    assert not client.is_crowded


def test_a_worker_that_acknowledges_nothing_is_not_heard_any_more(server: Server, client: Client) -> None:
    arrived(server, client)
    for _ in range(1001):  # the client reads none of them
        server.send(WORKER, Stop(1, 1))
    assert server.refused == {"acknowledges nothing": 1}
    assert isinstance(answer(server, client), Stop)
    client.send(Ready())
    for _ in range(500):
        list(server.poll(0.01))
        if Refused("unknown peer") in client.receive():
            break
    assert server.refused["unknown peer"] >= 1


def test_a_worker_that_talks_comes_to_miss_what_was_lost(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends no beats, whose answers would say how much it was sent."""
    monkeypatch.setattr("maggy_like.rpc.server.REMINDER", 0.0)
    arrived(server, client)
    with monkeypatch.context() as lossy:
        lossy.setattr(server, "_put", lambda route, frame: None)
        server.send(WORKER, Stop(1, 1))
    client.send(Ready())
    assert answer(server, client) == Stop(1, 1)


def test_a_worker_is_reminded_of_nothing_that_may_be_on_its_way(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.rpc.server.REMINDER", 1e9)
    client.send(Ready())
    arrived(server, client, 2)
    server.send(WORKER, Stop(1, 1))
    put: list[bytes] = []
    monkeypatch.setattr(server, "_put", lambda route, frame: put.append(frame))
    for _ in range(5):
        client.send(Ready())
    received: list[Received] = []
    for _ in range(500):
        received += server.poll(0.01)  # the client reads nothing meanwhile
        if len(received) == 5:
            break
    assert len(received) == 5
    assert put == []


def test_a_configuration_past_the_limit_is_the_users_error(server: Server, client: Client) -> None:
    arrived(server, client)
    with pytest.raises(ConfigError, match="a configuration must have less than"):
        server.send(WORKER, Assign(1, 1, {"x": "x" * MAX_FRAME}, 1))


def test_a_goodbye_is_acknowledged_so_that_nobody_waits(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.rpc.client.CLOSE_PATIENCE", 100.0)
    client = introduced(server, hello(3))
    arrived(server, client)
    client.send(Goodbye())
    assert arrived(server, client) == [Received(WORKER, Goodbye())]
    server.acknowledge()
    closer = threading.Thread(target=client.close)
    closer.start()
    closer.join(50.0)  # less than it would wait in vain
    assert not closer.is_alive()


def test_wake_ends_a_poll_from_another_thread(server: Server) -> None:
    waker = threading.Timer(0.05, server.wake)
    waker.start()
    assert list(server.poll(30)) == []
    waker.join()


def test_a_worker_that_has_not_come_is_passed_over(server: Server, client: Client) -> None:
    server.send(WORKER, Beat())
    assert arrived(server, client) == [Received(WORKER, hello(3))]
    assert client.receive() == []


def test_the_keys_do_not_show() -> None:
    keys = new_key_pair()
    task = WorkerTask("tcp://x:1", keys[0], "run", b"", (), (), (), "", "")
    context = WorkerContext(0, 0, "host", keys)
    for shown in (repr(task), str(task), repr(context), str(context)):
        for key in keys:
            assert key.decode() not in shown


def test_handshakes_that_nobody_has_taken_in_keep_neither_the_connections_nor_the_end_waiting(server: Server) -> None:
    """ZeroMQ's own thread tells of each connection; at a bound of what waits there it would stand still for good."""
    port = int(server.address.rpartition(":")[2])
    for _ in range(2500):
        with sockets.create_connection(("127.0.0.1", port), timeout=60):
            pass
    late = introduced(server, hello(3))
    assert [received.worker for received in arrived(server, late)] == [WORKER]
    late.close()
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


def test_thousands_of_workers_may_come_at_once(server: Server) -> None:
    assert server._socket.getsockopt(zmq.BACKLOG) >= 4096


# -- what a worker waits for an answer to is read first -------------------------------------------
REPORT, LINE, END = Reported(0, 1, "loss", {}), Logged(1, 1, ["a line"]), Finished(1, 1, "returned")


def test_an_end_and_what_its_worker_said_before_pass_the_reports_of_another_by(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("127.0.0.1")
    first, second = (introduced(server, hello(index)) for index in range(2))
    try:
        with monkeypatch.context() as nothing_given:
            nothing_given.setattr("maggy_like.rpc.server.ROUND_SECONDS", 0.0)
            waits(server, first, second, 2)
        assert all(isinstance(message, Hello) for message in told(server, 2))
        with monkeypatch.context() as nothing_given:
            nothing_given.setattr("maggy_like.rpc.server.ROUND_SECONDS", 0.0)
            for _ in range(100):
                first.send(REPORT)
            waits(server, first, second, 100)
            second.send(LINE)
            second.send(END)
            waits(server, first, second, 102)
        assert told(server, 102) == [LINE, END, *[REPORT] * 100]
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


def told(server: Server, count: int) -> list[ToDriver]:
    """What the driver is given of that."""
    messages: list[ToDriver] = []
    for _ in range(500):
        messages += [received.message for received in server.poll(0.01) if not isinstance(received.message, Unfit)]
        if len(messages) >= count:
            break
    return messages


# -- shares of the connections ----------------------------------------------------------------------


LARGEST = 5000
HEAD_START = 3000
URGENT_START = 2000


@given(
    steps=st.lists(
        st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, LARGEST), st.booleans())), max_size=200
    )
)
def test_each_connection_keeps_its_order_and_none_waits_for_more_than_its_share(
    steps: list[tuple[int, int, bool] | None],
) -> None:
    """None takes a frame. One waits for as many bytes of another connection as its own has before it, and a bound."""
    before = module.HEAD_START, module.URGENT_START
    module.HEAD_START, module.URGENT_START = HEAD_START, URGENT_START
    try:
        check_shares(steps)
    finally:
        module.HEAD_START, module.URGENT_START = before


def check_shares(steps: list[tuple[int, int, bool] | None]) -> None:
    backlog, number = FairBacklog(), 0
    waiting: dict[bytes, list[bytes]] = defaultdict(list)
    served: list[tuple[bytes, bytes]] = []
    budgets: dict[bytes, dict[bytes, int]] = {}  # by frame: what it may still wait for, by connection
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            connection, number = b"%d" % step[0], number + 1
            frame = b"%d " % number + bytes(step[1])
            backlog.put(connection, frame, urgent=step[2])
            waiting[connection].append(frame)
            own = sum(map(cost, waiting[connection]))
            others = [name for name in waiting if name != connection]
            budgets[frame] = {name: own + HEAD_START + URGENT_START + cost(bytes(LARGEST + 10)) for name in others}
        elif backlog:
            connection, taken = backlog.take()
            assert taken == waiting[connection].pop(0)
            served.append((connection, taken))
            del budgets[taken]
            for budget in budgets.values():
                if connection in budget:
                    budget[connection] -= cost(taken)
                    assert budget[connection] >= 0
    assert not backlog
    assert backlog.size == 0
    assert len(served) == number


def cost(frame: bytes) -> int:
    return FRAME_COST + len(frame)


def test_who_sends_little_waits_for_nobody_s_megabytes() -> None:
    backlog = FairBacklog()
    for heavy in range(64):
        for _ in range(4):
            backlog.put(b"heavy %d" % heavy, bytes(1 << 18))
    backlog.take()
    backlog.put(b"light", b"a beat")
    assert backlog.take() == (b"light", b"a beat")
    backlog.put(b"light", b"another")
    assert backlog.take() == (b"light", b"another")


@pytest.mark.slow
def test_connections_that_are_long_gone_are_forgotten() -> None:
    backlog = FairBacklog()
    for _ in range(2):
        backlog.put(b"busy", bytes(1 << 20))
    for number in range(20_000):
        backlog.put(b"busy", bytes(1 << 20))
        backlog.put(b"%d" % number, bytes(1 << 12))
        backlog.take()
        backlog.take()
    assert len(backlog._queues) < 3000
    while backlog:
        backlog.take()
    assert not backlog._queues
    assert not backlog._due


def test_an_urgent_frame_passes_those_by_that_came_before_it() -> None:
    backlog = FairBacklog()
    for number in range(1000):
        backlog.put(b"%d" % number, b"a report")
    backlog.put(b"7", b"an end", urgent=True)
    assert [backlog.take() for _ in range(3)] == [(b"7", b"a report"), (b"7", b"an end"), (b"0", b"a report")]


def test_who_calls_all_urgent_soon_waits_like_others() -> None:
    backlog = FairBacklog()
    for _ in range(3000):
        backlog.put(b"eager", b"a report", urgent=True)
    backlog.put(b"quiet", b"a report")
    served = [backlog.take()[0] for _ in range(3001)]
    assert served.index(b"quiet") <= (module.HEAD_START + module.URGENT_START) // FRAME_COST
