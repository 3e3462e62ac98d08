"""The driver fails, or its journal refuses: whoever waits is told of what, and nothing is said too early."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hand import settings_of
from module_time import patch_time
from wire import hello, wait_for

from maggy_like.display.base import Snapshot
from maggy_like.driver import loop as module
from maggy_like.driver.loop import TICK, Driver, WriteAhead
from maggy_like.driver.proposers import DirectProposer
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import Append, Command, Send, Show, StopRequested, StoreReturned
from maggy_like.driver.stream import Cursor
from maggy_like.errors import JournalError, StoreError, WorkerError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import PYTHON, Beat, Logged, Ready, Versions
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.client import Client
from maggy_like.rpc.server import Server
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, backend_of, read_journal
from optimizers import Float
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch

PATIENCE = 300.0
TARGET = 0.9
"""Seconds that stand for "not for ever"."""


class Broken(Exception):
    """What the fakes raise."""


def fail(*_: object, **__: object) -> Any:
    raise Broken("it fails")


@pytest.fixture
def machine() -> StateMachine:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4)
    return StateMachine(study, settings_of(study, target=TARGET))


@pytest.fixture
def proposer(machine: StateMachine) -> DirectProposer:
    return DirectProposer(machine.study)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(backend_of(str(tmp_path)))
    yield made
    made.close()


@pytest.fixture
def driver(
    tmp_path: Path, machine: StateMachine, proposer: DirectProposer, server: Server, journal: Journal
) -> Iterator[Driver]:
    """A driver that would wait for its only worker."""
    base = Snapshot("run", str(tmp_path), "random", "max", "starting", 0.0)
    made = Driver(machine, proposer, server, journal, base, 1, keep=None, timeout=None)
    yield made
    made.release()
    made.join()


def waits_for_the_journal(driver: Driver) -> bool:
    return any("the search waits and tries again" in line.text for line in driver.lines)


def test_the_first_thing_shown_has_what_the_journal_of_a_resumed_run_had(tmp_path: Path) -> None:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4)
    study.apply(TrialCreated(0, {"x": 0.5}, 1.0))
    study.apply(AttemptStarted(0, 1, 0, 1, 1.0))
    study.apply(AttemptEnded(0, 1, TrialState.COMPLETED, 2.0, value=0.5))
    server, journal = Server("127.0.0.1"), Journal(backend_of(str(tmp_path)))
    base = Snapshot("run", str(tmp_path), "random", "max", "starting", 0.0)
    machine = StateMachine(study)
    made = Driver(machine, DirectProposer(study), server, journal, base, 1, keep=None, timeout=None)
    server.close()
    journal.close()
    assert made.snapshot.counts[TrialState.COMPLETED] == 1  # else the time left counts them to the new driver's pace
    assert made.snapshot.phase == Phase.STARTING


@pytest.mark.parametrize(
    ("part", "name"),
    [(Server, "poll"), (WriteAhead, "carry"), (StateMachine, "handle")],
    ids=["poll", "carry", "handle"],
)
def test_what_fails_in_the_loop_ends_the_driver_with_that_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, part: type, name: str
) -> None:
    monkeypatch.setattr(part, name, fail)
    driver.start()
    assert driver.done.wait(PATIENCE)
    assert isinstance(driver.error, Broken)
    assert driver.has_ended
    driver.join()
    assert driver.snapshot.phase == Ending.ERROR  # the last thing that the display shows


@pytest.mark.parametrize("released", [False, True], ids=["while it runs", "as it ends"])
def test_a_drawing_that_fails_keeps_nobody_waiting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    monkeypatch.setattr("maggy_like.driver.loop.draw", fail)
    if released:
        driver.release()
    driver.start()
    assert driver.done.wait(PATIENCE)
    driver.join()
    assert isinstance(driver.error, Broken)


def test_a_proposer_that_cannot_start_ends_the_search_with_its_error(
    driver: Driver, machine: StateMachine, proposer: DirectProposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposer, "start", fail)
    driver.start()
    wait_for(lambda: machine.ending is not None, PATIENCE)
    assert isinstance(machine.error, Broken)
    assert machine.ending == "error"


class Refusing:
    """A journal's ``append`` that refuses while it is told to, and knows when it was tried."""

    def __init__(self, journal: Journal, act: Callable[[], None]) -> None:
        self.tried = threading.Event()
        self._append = journal.append
        self._act: Callable[[], None] | None = act

    def serve(self) -> None:
        self._act = None

    def __call__(self, events: list[Event]) -> None:
        if events and self._act is not None:
            self.tried.set()
            self._act()
        self._append(events)


def refuse() -> None:
    raise StoreError("the disk is full")


@pytest.fixture
def at_target(machine: StateMachine) -> None:
    """Have the search end as it begins: its target was reached by a trial that was cut off."""
    config = {"x": 0.5}
    machine.replay(
        [
            TrialCreated(0, config, 0),
            AttemptStarted(0, 1, 0, 1, 0.0, config, 0, None, 0, 1),
            Measured(0, 1, "accuracy", {"accuracy": ([1], [TARGET])}, direction="max"),
        ]
    )


@pytest.mark.usefixtures("at_target")
def test_a_search_that_has_reached_its_target_waits_for_a_journal_that_refuses(
    driver: Driver, machine: StateMachine, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Cursor(driver.backlog)
    refusing = Refusing(journal, refuse)
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    assert refusing.tried.wait(PATIENCE)
    wait_for(lambda: waits_for_the_journal(driver) or driver.done.is_set(), PATIENCE)
    assert not events.left
    assert machine.ending == "target"
    assert not driver.done.is_set()
    refusing.serve()
    wait_for(lambda: driver.has_ended, PATIENCE)
    assert driver.error is None
    assert events.left


@pytest.mark.usefixtures("at_target")
def test_a_search_has_not_ended_before_the_journal_has_its_last_events(
    driver: Driver, machine: StateMachine, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves = threading.Event()
    refusing = Refusing(journal, lambda: assert_wait(serves))
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    assert refusing.tried.wait(PATIENCE)
    assert machine.ending == "target"
    assert not driver.has_ended  # else the workers, and the patience with the store, would be cut short
    serves.set()
    wait_for(lambda: driver.has_ended, PATIENCE)


def assert_wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


@pytest.mark.usefixtures("at_target")
def test_who_stops_a_search_that_has_ended_does_not_wait_for_its_journal(
    driver: Driver, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(journal, refuse)
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    wait_for(lambda: waits_for_the_journal(driver), PATIENCE)
    driver.post(StopRequested(Ending.INTERRUPTED))
    assert driver.done.wait(PATIENCE)
    assert isinstance(driver.error, StoreError)


def test_what_the_journal_does_not_have_is_not_acknowledged(
    driver: Driver, journal: Journal, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(journal, refuse)
    monkeypatch.setattr(journal, "append", refusing)
    client = Client(server.address, server.public_key, server.admit(WorkerId(0, 0)))
    client.introduce(hello(0))
    driver.start()
    client.send(Ready())  # a trial would begin, if the journal could say so

    def answered() -> bool:
        before = client.heard
        client.beat()
        wait_for(lambda: client.receive() is not None and client.heard > before, PATIENCE)
        return True

    wait_for(lambda: client.receive() is not None and waits_for_the_journal(driver), PATIENCE)
    client.send(Logged(0, 1, ["a line"]))
    for _ in range(5):
        answered()
        time.sleep(0.1)
    assert not client._link.is_empty
    refusing.serve()
    wait_for(lambda: answered() and client._link.is_empty, PATIENCE)
    client.close()


def test_a_driver_that_stood_still_holds_that_against_no_worker(
    driver: Driver, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood_still = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stood_still), time=time.time)
    monkeypatch.setattr("maggy_like.driver.loop.time", clock)
    client = Client(server.address, server.public_key, server.admit(WorkerId(0, 0)))
    client.introduce(hello(0))
    driver.start()
    wait_for(lambda: client.receive() is not None and bool(driver.snapshot.workers), PATIENCE)
    carry = WriteAhead.carry

    def carry_slowly(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(WriteAhead, "carry", carry)
        stood_still.append(100.0)  # as over a store that answers late, or a process that was stopped
        return carry(*args, **options)

    monkeypatch.setattr(WriteAhead, "carry", carry_slowly)
    wait_for(lambda: len(stood_still) == 2, PATIENCE)
    since = driver.elapsed()
    wait_for(lambda: driver.snapshot.elapsed > since + 3 * TICK, PATIENCE)
    assert [worker.state for worker in driver.snapshot.workers] == ["joining"]
    client.close()


@pytest.fixture
def stranger(server: Server) -> Iterator[Client]:
    """A worker with another maggy_like."""
    made = Client(server.address, server.public_key, server.admit(WorkerId(0, 0)))
    made.introduce(msgspec.structs.replace(hello(0), versions=Versions("0.0.9", "/opt/old", PYTHON, "/w/python")))
    yield made
    made.close()


def test_a_search_whose_first_worker_has_another_version_ends_with_both(
    driver: Driver, machine: StateMachine, stranger: Client
) -> None:
    driver.start()
    wait_for(lambda: stranger.receive() is not None and machine.ending is not None, PATIENCE)
    assert machine.ending == "error"
    assert isinstance(machine.error, WorkerError)
    assert "worker 0 on host cannot serve this search: the driver has maggy_like" in str(machine.error)
    assert "the worker 0.0.9 (/opt/old)" in str(machine.error)


def test_a_search_that_has_begun_goes_on_without_a_worker_of_another_version(
    driver: Driver, machine: StateMachine, stranger: Client
) -> None:
    driver.ready.add(WorkerId(1, 0))
    driver.start()
    wait_for(lambda: stranger.receive() is not None and bool(driver.lines), PATIENCE)
    [line] = driver.lines
    assert line.text.endswith("; the search continues without it")
    assert machine.ending is None


# -- what the driver holds back while its journal cannot be written -------------------------------


HEADER = RunHeader(FORMAT_VERSION, "run", 1.5, {"x": {"type": "float"}}, "random", ["max"], [], 0, 27)
SEND = Send(WorkerId(0, 0), Beat())


def created(number: int) -> Append:
    return Append(TrialCreated(number, {"x": 0.5}, number))


class Disk:
    """A journal on a disk that is full while ``error`` stands, and a clock that stands still."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.now = 0.0
        self.lines: list[str] = []
        self.kept: list[Any] = []
        self.tries = 0
        self.place = backend_of(str(folder))
        self._append = self.place.append
        monkeypatch.setattr(self.place, "append", self.append)
        patch_time(monkeypatch, module, monotonic=lambda: self.now)
        self.journal = Journal(self.place)
        self.journal.begin(HEADER)
        self.write_ahead = WriteAhead(self.journal, self.keep, lambda show: self.lines.append(show.text), 600.0)

    def append(self, data: bytes) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self._append(data)

    def keep(self, returned: Any) -> None:
        if self.error is not None:
            raise self.error
        self.kept.append(returned)

    def events(self) -> list[Any]:
        return read_journal(self.place).events


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


FULL = OSError(28, "No space left on device")


def test_what_depends_on_the_journal_waits_for_it_in_order(disk: Disk, tmp_path: Path) -> None:
    first: list[Command] = [created(0), SEND, Show("one")]
    assert disk.write_ahead.carry(first) == first
    disk.error = FULL
    second: list[Command] = [created(1), SEND]
    assert disk.write_ahead.carry(second) == []
    assert disk.write_ahead.is_stuck
    disk.now = 24.0
    assert disk.write_ahead.carry([StoreReturned("answer"), created(2)]) == []
    disk.error, disk.now = None, 30.0
    assert disk.write_ahead.carry([SEND]) == [*second, created(2), SEND]
    assert disk.events() == [created(number).event for number in range(3)]
    assert disk.kept == ["answer"]
    assert not disk.write_ahead.is_stuck
    assert disk.lines == [
        f"the journal in {tmp_path} cannot be written: [Errno 28] No space left on device; the search waits and tries "
        "again",
        "the journal can be written again after 30 s",
    ]


def test_a_lease_that_cannot_be_renewed_has_nothing_written_twice(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FULL

    disk.now = 1.0
    with monkeypatch.context() as patch:
        patch.setattr(disk.place, "renew", refuse)
        assert disk.write_ahead.carry([created(0)]) == []
        assert disk.write_ahead.is_stuck
    disk.now = 2.0
    assert disk.write_ahead.carry([created(1)]) == [created(0), created(1)]
    assert disk.events() == [created(0).event, created(1).event]


def test_tries_grow_rarer(disk: Disk) -> None:
    disk.error, before = FULL, disk.tries
    for tenth in range(1000):
        disk.now = tenth / 10
        disk.write_ahead.carry([created(0)] if not tenth else [])
    assert 20 <= disk.tries - before <= 30


def test_a_slow_refusal_leaves_the_driver_half_of_its_time(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_slowly(data: bytes) -> None:
        disk.now += 20.0
        raise FULL

    monkeypatch.setattr(disk.place, "append", refuse_slowly)
    disk.write_ahead.carry([created(0)])
    began = disk.now
    while disk.now < began + 19.9:
        disk.write_ahead.carry([])
        disk.now += 0.1
    assert disk.now < began + 21


def test_after_ten_minutes_it_is_an_error(disk: Disk) -> None:
    disk.error = FULL
    disk.write_ahead.carry([created(0)])
    disk.now = 599.0
    disk.write_ahead.carry([])
    disk.now = 610.0
    with pytest.raises(StoreError, match=r"No space left on device, for 610 s now; free space or fix .* resume=True"):
        disk.write_ahead.carry([])


def test_a_run_that_was_stopped_does_not_wait(disk: Disk) -> None:
    disk.error = FULL
    disk.write_ahead.carry([created(0)])
    disk.now = 1.0
    with pytest.raises(StoreError, match="for 1 s now"):
        disk.write_ahead.carry([SEND], is_last=True)


def test_a_run_that_was_stopped_asks_a_slow_store_no_more(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_slowly(data: bytes) -> None:
        disk.now += 20.0
        raise FULL

    monkeypatch.setattr(disk.place, "append", refuse_slowly)
    disk.write_ahead.carry([created(0)])
    with pytest.raises(StoreError, match="for 20 s now"):
        disk.write_ahead.carry([SEND], is_last=True)
    assert disk.now == 20.0


def test_a_file_that_may_not_grow_is_not_waited_for(disk: Disk) -> None:
    disk.error = OSError(27, "File too large")
    for commands in ([created(0)], [StoreReturned("answer")]):
        with pytest.raises(StoreError, match=r"File too large; raise the limit on the size of files \(ulimit -f\), .*"):
            disk.write_ahead.carry(commands)
    assert not disk.lines


def test_another_driver_that_has_taken_over_ends_it_at_once(disk: Disk) -> None:
    disk.error = JournalError("was taken over")
    with pytest.raises(JournalError, match="was taken over"):
        disk.write_ahead.carry([created(0)])


def test_what_cannot_be_kept_for_a_reason_of_its_own_is_no_refusal(disk: Disk) -> None:
    disk.error = TypeError("no such thing")
    with pytest.raises(TypeError, match="no such thing"):
        disk.write_ahead.carry([StoreReturned("answer")])


def test_half_an_append_is_cut_off_before_the_next(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def write_some(file: int, data: memoryview) -> int:
        if len(data) > 10:
            return write(file, data[: len(data) // 2])
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr("maggy_like.storage.journal.journal.os.write", write_some)
        disk.write_ahead.carry([created(0)])
    assert disk.events() == []
    disk.now = 1.0
    disk.write_ahead.carry([created(1)])
    assert disk.events() == [created(0).event, created(1).event]
