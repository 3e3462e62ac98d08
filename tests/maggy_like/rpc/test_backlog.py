from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from maggy_like.rpc import server as module
from maggy_like.rpc.server import FRAME_COST, FairBacklog

LARGEST = 5000
HEAD_START = 3000
URGENT_START = 2000


@given(
    steps=st.lists(
        st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, LARGEST), st.booleans())), max_size=200
    ),
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
