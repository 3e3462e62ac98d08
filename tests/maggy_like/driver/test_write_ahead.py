"""What the driver holds back while its journal cannot be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from module_time import patch_time

from maggy_like.driver import write_ahead as module
from maggy_like.driver.state_machine.interface import Append, Command, Send, Show, StoreReturned
from maggy_like.driver.write_ahead import WriteAhead
from maggy_like.errors import JournalError, StoreError
from maggy_like.protocol.messages import Beat
from maggy_like.protocol.task import WorkerId
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, backend_of, read_journal
from optimizers.core.events import TrialCreated

HEADER = RunHeader(FORMAT_VERSION, "run", 1.5, {"x": {"type": "float"}}, "random", ["max"], [], 0, 27)
SEND = Send(WorkerId(0, 0), Beat())


def created(number: int) -> Append:
    return Append(TrialCreated(number, {"x": 0.5}, number))


class Disk:
    """A journal on a disk that is full while ``error`` stands, and a clock that stands still."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.now = 0.0
        self.seconds = 0.0
        """How long each append takes."""
        self.lines: list[str] = []
        self.kept: list[Any] = []
        self.tries = 0
        self.place = backend_of(str(directory))
        self._append = self.place.append
        monkeypatch.setattr(self.place, "append", self.append)
        patch_time(monkeypatch, module, monotonic=lambda: self.now)
        self.journal = Journal(self.place)
        self.journal.begin(HEADER)
        self.write_ahead = WriteAhead(self.journal, self.keep, lambda show: self.lines.append(show.text), 600.0)

    def append(self, data: bytes) -> None:
        self.tries += 1
        self.now += self.seconds
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


def test_a_slow_refusal_leaves_the_driver_half_of_its_time(disk: Disk) -> None:
    disk.error, disk.seconds = FULL, 20.0
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


def test_a_run_that_was_stopped_asks_a_slow_store_no_more(disk: Disk) -> None:
    disk.error, disk.seconds = FULL, 20.0
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
