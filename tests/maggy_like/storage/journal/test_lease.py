"""Who may drive a run whose journal lies where there are no locks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import fsspec
import msgspec
import pytest
from module_time import patch_time

from maggy_like.errors import JournalError
from maggy_like.storage.journal import object_store
from maggy_like.storage.journal.object_store import LAPSE, RENEWAL, Lease, claim


class Shelf:
    """The lease of one run, in memory."""

    def __init__(self) -> None:
        self.fs = fsspec.filesystem("memory")
        self.folder = f"/{uuid.uuid4().hex}"
        self.fs.makedirs(self.folder)

    @property
    def path(self) -> str:
        """The newest driver's lease."""
        self.fs.invalidate_cache()
        leases = self.fs.glob(f"{self.folder}/lease*.json")
        return max(leases, key=lambda path: (len(path), path), default=f"{self.folder}/lease.json")

    def lease(self) -> Lease:
        return Lease(self.fs, f"{self.folder}/lease.json", "memory://run")

    def says(self) -> dict[str, Any]:
        return dict(msgspec.json.decode(self.fs.cat_file(self.path)))

    def change(self, **fields: Any) -> None:
        self.fs.pipe_file(self.path, msgspec.json.encode({**self.says(), **fields}))


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", sleep=lambda seconds: None)
    return Shelf()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time, which stands still."""
    at = time.time()
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: at)
    return at


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_a_second_driver_is_told_who_holds_it_and_when_it_lapses(shelf: Shelf, now: float) -> None:
    first = shelf.lease()
    first.take()
    with pytest.raises(JournalError) as caught:
        shelf.lease().take()
    host = re.escape(os.uname().nodename)
    assert re.search(rf"in use by process {os.getpid()} on {host}.*expires in 60 s", str(caught.value))
    first.give_back()
    assert not shelf.fs.exists(shelf.path)


def test_a_lease_of_another_host_is_taken_over_when_it_has_lapsed(shelf: Shelf, now: float) -> None:
    shelf.lease().take()
    shelf.change(host="elsewhere", time=now - LAPSE + 5)
    with pytest.raises(JournalError, match=r"on elsewhere; .*expires in 5 s"):
        shelf.lease().take()
    shelf.change(time=now - LAPSE - 1)
    shelf.lease().take()
    assert shelf.says()["host"] == os.uname().nodename


def test_a_dead_holder_on_this_host_is_passed_over_at_once(shelf: Shelf) -> None:
    shelf.lease().take()
    shelf.change(pid=dead_process())
    shelf.lease().take()
    assert shelf.says()["pid"] == os.getpid()
    shelf.change(owner="a process of the same number, before this container was started again")
    shelf.lease().take()


def test_the_same_host_name_on_another_machine_is_another_host(shelf: Shelf) -> None:
    shelf.lease().take()
    shelf.change(pid=dead_process(), machine="0123456789ab")
    with pytest.raises(JournalError, match="is in use"):
        shelf.lease().take()


def test_numbers_of_another_table_of_processes_mean_nothing_here(shelf: Shelf) -> None:
    """Containers may share the host's name and address, and each count their processes themselves."""
    code = "from maggy_like.storage.journal.object_store import _machine; print(_machine())"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    try:
        there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to make a namespace of processes")
    shelf.lease().take()
    shelf.change(pid=dead_process(), machine=there)
    with pytest.raises(JournalError, match="is in use"):
        shelf.lease().take()


def test_it_is_renewed_when_it_is_due(shelf: Shelf, now: float, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = shelf.lease()
    lease.take()
    taken = shelf.says()["time"]
    lease.renew()
    assert shelf.says()["time"] == taken
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + RENEWAL + 1)
    lease.renew()
    assert shelf.says()["time"] == now + RENEWAL + 1


def test_a_driver_that_woke_too_late_finds_out_and_leaves_the_other_s_lease(
    shelf: Shelf, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, other = shelf.lease(), shelf.lease()
    frozen.take()
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + LAPSE + 1)
    other.take()
    with pytest.raises(JournalError, match=rf"was taken over: process {os.getpid()} on .*; let that process continue"):
        frozen.renew()
    frozen.give_back()
    assert shelf.says()["owner"] == other._owner
    other.renew()


@pytest.fixture(params=["s3", "memory"])
def contested(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """The lease of one run in a store with conditional writes, and in one without."""
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SETTLE", 0.0)
    if request.param == "memory":
        return Shelf()
    for name, value in request.getfixturevalue("object_store").items():
        monkeypatch.setenv(name, value)
    shelf = Shelf()
    shelf.fs = fsspec.filesystem("s3", skip_instance_cache=True)
    shelf.folder = f"runs/{uuid.uuid4().hex}"
    return shelf


def paused(monkeypatch: pytest.MonkeyPatch, lease: Lease, meanwhile: Callable[[], None]) -> None:
    """Have ``lease`` stand still, between its next look and what it does then, while others act."""
    look = Lease._look

    def look_and_pause(self: Lease) -> Any:
        found = look(self)
        if self is lease:
            monkeypatch.setattr(Lease, "_look", look)
            meanwhile()
        return found

    monkeypatch.setattr(Lease, "_look", look_and_pause)


def test_of_two_that_come_at_once_one_is_refused(contested: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    late, first = contested.lease(), contested.lease()
    paused(monkeypatch, late, first.take)
    with pytest.raises(JournalError, match="is in use"):
        late.take()
    first.renew()
    first.give_back()
    assert not contested.fs.exists(contested.path)


def test_of_two_that_take_a_lapsed_lease_over_one_is_refused(
    contested: Shelf, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    contested.lease().take()
    contested.change(time=now - LAPSE - 1)
    late, first = contested.lease(), contested.lease()
    paused(monkeypatch, late, first.take)
    with pytest.raises(JournalError, match="is in use"):
        late.take()
    assert contested.says()["owner"] == first._owner


def test_a_driver_that_freezes_as_it_renews_takes_nothing_back(
    contested: Shelf, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, other = contested.lease(), contested.lease()
    frozen.take()

    def take_over() -> None:
        patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + 2 * LAPSE)
        other.take()

    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + RENEWAL + 1)
    paused(monkeypatch, frozen, take_over)
    with pytest.raises(JournalError, match="was taken over"):
        frozen.renew()
    assert contested.says()["owner"] == other._owner
    other.renew()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lease_that_is_given_back_late_leaves_the_successor_s(
    contested: Shelf, now: float, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    frozen, other = contested.lease(), contested.lease()
    frozen.take()
    call = "rm_file" if is_clean else "pipe_file"
    real = getattr(contested.fs, call)

    def pause_and_call(*args: Any, **options: Any) -> None:
        setattr(contested.fs, call, real)
        patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + 2 * LAPSE)
        other.take()
        real(*args, **options)

    monkeypatch.setattr(contested.fs, call, pause_and_call, raising=False)
    frozen.give_back(is_clean=is_clean)
    assert other.is_held()
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + 2 * LAPSE + RENEWAL)
    other.renew()
    with pytest.raises(JournalError, match="is in use"):
        contested.lease().take()


def test_an_epoch_whose_writes_may_come_late_is_not_given_again(shelf: Shelf) -> None:
    first, second, third = shelf.lease(), shelf.lease(), shelf.lease()
    first.take()
    first.give_back()
    second.take()
    second.give_back(is_clean=False)
    assert not shelf.lease().is_held()
    third.take()
    assert [first.epoch, second.epoch, third.epoch] == [1, 1, 2]


def test_one_that_was_taken_over_says_so_when_its_successor_is_gone_too(
    shelf: Shelf, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shelf.lease(), shelf.lease()
    first.take()
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now + 2 * LAPSE)
    second.take()
    shelf.fs.pipe_file(f"{shelf.folder}/journal-000001-{second.epoch}.0.jsonl", b"what it has written")
    second.give_back()
    with pytest.raises(JournalError, match=r"was taken over: another driver has continued and left it.*load_run"):
        first.renew()


def test_a_write_that_another_follows_at_once_does_not_count(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without conditional writes: who wrote last holds it, and the other finds out before it begins."""
    shelf.lease().take()
    shelf.change(time=0.0)
    early = shelf.lease()
    sleeps = []

    def settle(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 1:
            shelf.change(owner="one that stood still before its write")

    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", sleep=settle)
    with pytest.raises(JournalError, match="is in use"):
        early.take()
    assert shelf.says()["owner"] == "one that stood still before its write"
    assert sleeps == [object_store.SETTLE]


def test_an_answer_that_was_lost_on_its_way_is_no_other_driver(
    contested: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = contested.lease()

    def claim_twice(*args: Any) -> None:
        claim(*args)
        claim(*args)  # as botocore does where no answer comes

    monkeypatch.setattr("maggy_like.storage.journal.object_store.claim", claim_twice)
    lease.take()
    assert contested.says()["owner"] == lease._owner


def test_it_is_renewed_though_the_clock_was_set_back(shelf: Shelf, now: float, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = shelf.lease()
    lease.take()
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", time=lambda: now - 300)
    lease.renew()
    assert shelf.says()["time"] == now - 300
