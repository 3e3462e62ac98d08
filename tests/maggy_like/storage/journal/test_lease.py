"""Who may drive a run, and who is seen to do so."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
import train_functions as fns
from module_time import patch_time

from maggy_like import Float, Result, lagom
from maggy_like.driver import recovery
from maggy_like.errors import ConfigError, JournalError, MaggyError
from maggy_like.storage.journal import Journal, JournalBackend, object_store
from maggy_like.storage.journal.journal import BEAT, LocalBackend
from maggy_like.storage.journal.object_store import LAPSE, RENEWAL, Lease, claim
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.slow

# -- where there are no locks -----------------------------------------------------------------------


class Shelf:
    """The lease of one run, in memory."""

    def __init__(self) -> None:
        self.fs = fsspec.filesystem("memory")
        self.directory = f"/{uuid.uuid4().hex}"
        self.fs.makedirs(self.directory)

    @property
    def path(self) -> str:
        """The newest driver's lease."""
        self.fs.invalidate_cache()
        leases = self.fs.glob(f"{self.directory}/lease*.json")
        return max(leases, key=lambda path: (len(path), path), default=f"{self.directory}/lease.json")

    def lease(self) -> Lease:
        return Lease(self.fs, f"{self.directory}/lease.json", "memory://run")

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
    shelf.directory = f"runs/{uuid.uuid4().hex}"
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
    shelf.fs.pipe_file(f"{shelf.directory}/journal-000001-{second.epoch}.0.jsonl", b"what it has written")
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


# -- whether a run goes on, seen from its process, another, another host and another container ------


HOLD = """
import sys
from maggy_like.storage.journal.journal import LocalBackend
LocalBackend(sys.argv[1]).hold()
print("held", flush=True)
input()
"""


LOOK = """
import sys
from maggy_like.storage.journal.journal import LocalBackend
print(LocalBackend(sys.argv[1]).is_held())
"""


def look(directory: Path, *prefix: str) -> str:
    command = [*prefix, sys.executable, "-c", LOOK, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def holders() -> dict[str, str]:
    host = os.uname().nodename
    return {
        "another host": "process 1234 on container-7f3a",
        "a process id that was reused": f"process 1 on {host}",
        "this very process": f"process {os.getpid()} on {host}",
    }


@pytest.mark.parametrize("seen_from", holders())
def test_a_killed_driver_holds_nothing_whatever_its_lock_says(tmp_path: Path, seen_from: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=-1, stdout=-1, text=True) as driver:
        assert driver.stdout.readline() == "held\n"
        assert LocalBackend(tmp_path).is_held()
        with pytest.raises(JournalError, match=rf"another driver \(process {driver.pid} on .*, or end it"):
            LocalBackend(tmp_path).hold()
        driver.kill()
        driver.communicate()
    (tmp_path / "journal.lock").write_text(holders()[seen_from])
    assert not LocalBackend(tmp_path).is_held()
    successor = LocalBackend(tmp_path)
    successor.hold()
    assert LocalBackend(tmp_path).is_held()
    successor.release()


@pytest.mark.parametrize("seen_from", holders())
def test_a_live_driver_holds_its_run_whatever_its_lock_says(tmp_path: Path, seen_from: str) -> None:
    driver = LocalBackend(tmp_path)
    driver.hold()
    (tmp_path / "journal.lock").write_text(holders()[seen_from])
    assert LocalBackend(tmp_path).is_held()
    assert look(tmp_path) == "True"
    driver.release()
    assert not LocalBackend(tmp_path).is_held()


def test_a_run_goes_on_seen_from_a_container_with_other_process_ids(tmp_path: Path) -> None:
    driver = LocalBackend(tmp_path)
    driver.hold()
    try:
        there = look(tmp_path, "unshare", "--pid", "--fork", "--mount-proc")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to make a namespace of processes")
    finally:
        driver.release()
    assert there == "True"


def test_a_reader_that_looks_just_then_keeps_no_driver_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal.lock").touch()
    with open(tmp_path / "journal.lock") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
        driver = LocalBackend(tmp_path)
        driver.hold()
    assert LocalBackend(tmp_path).is_held()
    driver.release()


def test_without_locks_a_reader_goes_by_the_driver_s_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    driver, lock = LocalBackend(tmp_path), tmp_path / "journal.lock"
    driver.hold()
    with monkeypatch.context() as mounted:
        mounted.setattr(fcntl, "flock", refuse)
        assert LocalBackend(tmp_path).is_held()
        os.utime(lock, (time.time(), time.time() - LAPSE - 1))
        assert not LocalBackend(tmp_path).is_held()
        driver._beat -= BEAT
        driver.renew()
        assert LocalBackend(tmp_path).is_held()
    driver.release()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not LocalBackend(tmp_path).is_held()


def test_a_directory_without_a_lock_is_held_by_nobody(tmp_path: Path) -> None:
    assert not LocalBackend(tmp_path).is_held()
    assert not list(tmp_path.iterdir())


# -- two drivers that want one name at the same time ------------------------------------------------


@pytest.fixture(params=["local", "memory"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    directory = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else tmp_path
    return {
        "optimizer": "random", "n_trials": 3, "max_budget": 3, "engine": "inline", "directory": directory,
        "store": tmp_path / "states", "name": "run", "progress": False,
    }  # fmt: skip


class Rivals:
    """A driver that pauses at its journal's lock, and the other one, which runs meanwhile.

    Args:
        options: Of both.
        behind: Whether the first pauses once it has the lock.
    """

    def __init__(self, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, behind: bool) -> None:
        self.options = options
        self.other: Result | MaggyError | None = None
        self._behind = behind
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(recovery, "Journal", self.lock)

    def lock(self, backend: JournalBackend, run: str) -> Journal:
        self._monkeypatch.setattr(recovery, "Journal", Journal)
        journal = Journal(backend, run) if self._behind else None
        try:
            self.other = self.run()
        except MaggyError as error:
            self.other = error
        return journal or Journal(backend, run)

    def run(self, **more: Any) -> Result:
        return lagom(fns.climb_on, {"x": Float(0, 1)}, **{**self.options, **more})


def check_whole(rivals: Rivals, result: Result) -> None:
    """All of the winner's states are there, and its run goes on."""
    assert result.counts == {TrialState.COMPLETED: 3}
    again = rivals.run(resume=True, n_trials=4)
    assert again.counts == {TrialState.COMPLETED: 4}
    states = {path.parent.name for path in (rivals.options["store"] / "run").rglob("*.pkl")}
    assert len(states) == 4


@pytest.mark.e2e
def test_who_comes_while_a_run_is_being_started_is_told_by_whom(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(options, monkeypatch, behind=True)
    result = rivals.run()
    assert isinstance(rivals.other, JournalError)
    assert "is in use by" in str(rivals.other)
    assert "process" in str(rivals.other)
    assert "remove" not in str(rivals.other)
    check_whole(rivals, result)


@pytest.mark.e2e
def test_who_finds_at_the_lock_that_the_name_was_taken_touches_nothing(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(options, monkeypatch, behind=False)
    with pytest.raises(ConfigError, match=r"there is a run named .run. in .* already; pass resume=True"):
        rivals.run()
    assert isinstance(rivals.other, Result)
    check_whole(rivals, rivals.other)


@pytest.mark.e2e
def test_a_run_that_could_not_begin_does_not_keep_its_name(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(journal: Journal, header: Any) -> None:
        raise JournalError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "begin", refuse)
        with pytest.raises(JournalError, match="no room"):
            lagom(fns.climb_on, {"x": Float(0, 1)}, **options)
    assert lagom(fns.climb_on, {"x": Float(0, 1)}, **options).counts == {TrialState.COMPLETED: 3}
