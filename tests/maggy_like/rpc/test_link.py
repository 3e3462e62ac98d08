from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.rpc.client import HEARSAY, HEARTBEAT, TALK, Heartbeat, Poller
from maggy_like.rpc.link import ACK_COUNT, Arrival, Link, LinkError, body_of, is_urgent, new_session, read_header

SESSION = b"8 bytes."


class End:
    """One end, as client and server use a link, but without sockets."""

    def __init__(self) -> None:
        self.link = Link(SESSION)
        self.out: deque[bytes] = deque()
        self.said: list[bytes] = []
        self.heard: list[bytes] = []
        self.reminds = False

    def say(self, body: bytes) -> None:
        self.said.append(body)
        self.out.append(self.link.number(body))

    def hear(self, frame: bytes) -> None:
        header = read_header(frame)
        arrival = self.link.take(header, len(frame))
        if header.again:
            self.out.extend(self.link.unacknowledged())
        if arrival in (Arrival.EARLY, Arrival.BARE) and self.link.should_ask(header):
            self.out.append(self.link.bare(b"beat", again=True))
        if arrival is Arrival.NEXT:
            self.heard.append(bytes(body_of(frame)))
            if self.reminds and not self.link.is_empty:
                self.out.append(self.link.bare(b"beat"))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "deliver", "deliver", "settle", "beat", "reset", "lose", "replay", "swap"]),
        st.integers(0, 1),
    ),
    max_size=80,
)


@given(steps=STEPS, seed=st.integers(0, 1000))
def test_whatever_is_lost_repeated_or_swapped_all_arrives_once_and_in_order(
    steps: list[tuple[str, int]], seed: int
) -> None:
    rng = random.Random(seed)
    ends = End(), End()
    past: tuple[list[bytes], list[bytes]] = ([], [])
    settled = [0, 0]
    for step, which in steps:
        here, there = ends[which], ends[1 - which]
        if step == "say":
            here.say(b"%d" % len(here.said))
        elif step == "deliver" and here.out:
            past[which].append(here.out[0])
            there.hear(here.out.popleft())
        elif step == "settle":
            here.link.settle()
            settled[which] = len(here.heard)
        elif step == "beat":
            here.out.append(here.link.bare(b"beat"))
        elif step == "reset":
            for end in ends:
                end.out.clear()
                end.out.extend(end.link.unacknowledged())
        elif step == "lose" and here.out:
            del here.out[rng.randrange(len(here.out))]
        elif step == "replay" and past[which]:
            there.hear(rng.choice(past[which]))
        elif step == "swap" and len(here.out) > 1:
            here.out.rotate(1)
        for (end, other), safe in zip((ends, ends[::-1]), settled, strict=True):
            assert end.heard == other.said[: len(end.heard)]
            assert len(other.link.unacknowledged()) >= len(other.said) - safe  # what is not safe there is kept here
    for _ in range(4):  # beats alone mend what is still missing, and acknowledge it
        for end in ends:
            end.link.settle()
            end.out.append(end.link.bare(b"beat"))
        carry(*ends)
    for end, other in (ends, ends[::-1]):
        assert end.heard == other.said
        assert end.link.is_empty


def carry(one: End, other: End) -> None:
    """Deliver all that is under way, and what is said because of it."""
    while one.out or other.out:
        for here, there in ((one, other), (other, one)):
            if here.out:
                there.hear(here.out.popleft())


def test_a_gap_is_asked_for_once_and_again_with_each_heartbeat() -> None:
    """Also before the first body."""
    sender, receiver = Link(SESSION), Link(SESSION)
    lost, second, third = (sender.number(body) for body in (b"1", b"2", b"3"))
    assert lost
    for frame, asks in ((second, True), (third, False), (sender.bare(b"beat"), True)):
        header = read_header(frame)
        assert receiver.take(header, len(frame)) in (Arrival.EARLY, Arrival.BARE)
        assert receiver.should_ask(header) is asks


@given(lost=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_reminders_mend_what_a_worker_that_talks_misses_without_a_beat_of_its_own(
    lost: list[tuple[bool, bool]],
) -> None:
    """The driver's end answers what does not acknowledge all that it has sent, as the server does after a while."""
    driver, worker = End(), End()
    for is_lost, answers in lost:
        worker.say(b"report %d" % len(worker.said))
        carry(driver, worker)
        if answers:
            driver.say(b"order %d" % len(driver.said))
            if is_lost:
                driver.out.clear()
            carry(driver, worker)
            worker.link.settle()
    driver.reminds = True
    for _ in range(2):
        worker.say(b"report %d" % len(worker.said))
        carry(driver, worker)
        worker.link.settle()
    assert worker.heard == driver.said
    assert driver.heard == worker.said
    worker.say(b"a last one")
    carry(driver, worker)
    assert driver.link.is_empty


def test_a_gap_is_asked_for_once_and_again_with_each_beat() -> None:
    here, there = Link(SESSION), Link(SESSION)
    here.number(b"lost")
    later = [read_header(here.number(b"later")) for _ in range(3)]
    assert [there.take(header, 30) for header in later] == [Arrival.EARLY] * 3
    assert [there.should_ask(header) for header in later] == [True, False, False]
    beat = read_header(here.bare(b"beat"))
    assert there.take(beat, 30) is Arrival.BARE
    assert there.should_ask(beat)


def test_the_room_ends_and_acknowledgements_give_it_back() -> None:
    here, there = Link(SESSION, max_bytes=100), Link(SESSION)
    frames = [here.number(bytes(40)) for _ in range(3)]
    assert here.is_full
    for frame in frames:
        there.take(read_header(frame), len(frame))
    here.take(read_header(there.bare(b"")), 30)
    assert here.is_full  # it has arrived, and is not safe
    there.settle()
    here.take(read_header(there.bare(b"")), 30)
    assert here.is_empty
    assert not here.is_full


def test_many_frames_are_acknowledged_before_there_is_an_answer() -> None:
    here, there = Link(SESSION), Link(SESSION)
    for _ in range(ACK_COUNT):
        assert not there.owes_ack
        there.take(read_header(here.number(b"")), 30)
    there.bare(b"")  # acknowledges nothing: nothing is safe yet
    there.settle()
    assert there.owes_ack
    there.bare(b"")
    assert not there.owes_ack


@pytest.mark.parametrize("frame", [b"", bytes(24), SESSION + bytes(16) + b"\x08"])
def test_a_frame_without_a_header_is_no_frame(frame: bytes) -> None:
    with pytest.raises(LinkError):
        read_header(frame)


def test_a_frame_is_urgent_if_its_sender_said_so_and_never_without_its_header() -> None:
    link = Link(SESSION)
    urgent, patient = link.number(b"an end", urgent=True), link.number(b"a report")
    assert is_urgent(urgent)
    assert not is_urgent(patient)
    headless = len(urgent) - len(b"an end") - 1
    assert not any(is_urgent(urgent[:length]) for length in range(headless + 1))


def test_acknowledging_what_was_never_sent_is_an_error() -> None:
    here, there = Link(SESSION), Link(SESSION)
    there.take(read_header(here.number(b"")), 30)
    there.settle()
    with pytest.raises(LinkError, match="acknowledges 1 where 0 were sent"):
        Link(SESSION).take(read_header(there.bare(b"")), 30)


def test_sessions_differ() -> None:
    assert new_session() != new_session()


# -- heartbeat ------------------------------------------------------------------------------------


SAID = st.lists(st.tuples(st.sampled_from(["speak", "hear"]), st.floats(0.0, 3.0)), max_size=60)


@given(said=SAID)
def test_a_worker_is_never_silent_for_long_and_never_without_an_answer_for_long(said: list[tuple[str, float]]) -> None:
    """Beats at the moments at which they are due, among all else that is said and heard."""
    now = spoke = asked = 0.0
    heartbeat = Heartbeat(now)
    for what, pause in said:
        until = now + pause
        while heartbeat.due <= until:
            now = max(now, heartbeat.due)
            assert now - spoke <= TALK * HEARTBEAT + 1e-9
            assert now - max(asked, heartbeat.heard) <= HEARSAY * HEARTBEAT + 1e-9
            heartbeat.beat(now)
            spoke = asked = now
        now = until
        if what == "speak":
            heartbeat.spoke(now)
            spoke = now
        else:
            heartbeat.heard = now
    assert now - spoke <= TALK * HEARTBEAT + 1e-9


def beats(interval: float, seconds: int, *, is_answered: bool = True) -> int:
    """How many beats a worker sends that says something each ``interval``."""
    heartbeat, count, now, said = Heartbeat(0.0), 0, 0.0, 0.0
    while now < seconds:
        if heartbeat.due <= said:
            now = max(now, heartbeat.due)
            heartbeat.beat(now)
            count += 1
            if is_answered:
                heartbeat.heard = now
        else:
            now = said
            heartbeat.spoke(now)
            said += interval
    return count


def test_a_worker_that_says_nothing_beats_each_heartbeat() -> None:
    assert beats(1e9, 60) == pytest.approx(60, abs=2)


def test_one_that_reports_each_second_beats_only_for_an_answer() -> None:
    assert beats(1.0, 60) == pytest.approx(20, abs=2)
    assert beats(0.1, 60) == pytest.approx(20, abs=2)


def test_one_that_gets_no_answer_beats_each_heartbeat_although_it_talks() -> None:
    assert beats(0.5, 60, is_answered=False) == pytest.approx(58, abs=2)


# -- what a watch calls, and when -----------------------------------------------------------------


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
