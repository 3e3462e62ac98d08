"""What a trial does while the store refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from fsspec.implementations.local import LocalFileSystem
from module_time import patch_time

from maggy_like.processes.channel import Channel
from maggy_like.protocol.messages import Assign, Beat, ToDriver, Waiting, decode_to_driver, encode
from maggy_like.protocol.values import ReportError
from maggy_like.storage import checkpoints
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.storage.file_systems import is_store_fault, refusal
from maggy_like.worker.child import saves as store_retry
from maggy_like.worker.child import stop_state as store_wait
from maggy_like.worker.child.saves import Saves, StoreRetry
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.service import Service
from maggy_like.worker.child.stop_state import CALL_PATIENCE, QUIET, TrialStopped


class Clock:
    """Time that passes in pauses alone; what ``then`` names by its second happens meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.then: dict[float, Any] = {}
        for module in (store_retry, store_wait):
            patch_time(monkeypatch, module, monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in [at for at in self.then if at <= self.now]:
            self.then.pop(at)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Trial:
    """A trial with a store of its own, which refuses while a file stands in its place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "states"
        self.frames: list[bytes] = []
        self.sender = Sender(Assign(3, 2, {}, 9), self.frames.append)
        self.store = CheckpointStore(self.folder.as_uri(), 3, retry=StoreRetry(self.folder.as_uri(), self.sender))
        self.saves = Saves(self.store, None, self.sender, 3, 2)

    @property
    def told(self) -> list[ToDriver]:
        return [decode_to_driver(frame) for frame in self.frames]

    def refuse(self) -> None:
        if self.folder.exists():
            self.folder.rename(self.folder.with_name("away"))
        self.folder.touch()

    def serve(self) -> None:
        self.folder.unlink()
        if (away := self.folder.with_name("away")).exists():
            away.rename(self.folder)


def test_a_save_waits_until_the_store_serves(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    trial.refuse()
    clock.then[25.0] = trial.serve
    trial.saves.save({"step": 1})
    assert 25.0 <= clock.now <= 25.0 + 1.5 * store_retry.LONGEST_PAUSE
    assert trial.saves.restore(None) == {"step": 1}
    waits = [message for message in trial.told if isinstance(message, Waiting)]
    assert {bool(wait.reason) for wait in waits[:-1]} == {True}
    assert waits[-1] == Waiting(3, 2)
    assert "cannot be written (" in waits[0].reason
    assert sorted(path.name for path in trial.folder.rglob("*") if path.is_file()) == ["2-1.pkl"]


def test_what_was_saved_is_restored_once_the_store_serves(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    trial.saves.save("state")
    trial.refuse()
    clock.then[10.0] = trial.serve
    assert trial.saves.restore(None) == "state"
    assert any(isinstance(message, Waiting) and "cannot be read" in message.reason for message in trial.told)


def test_what_a_function_returned_is_kept_once_the_store_serves(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    trial.refuse()
    clock.then[10.0] = trial.serve
    trial.saves.keep(object)
    assert (trial.folder / "returned.pkl").exists()


def test_a_store_that_stumbles_is_no_news(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    trial.refuse()
    clock.then[QUIET / 4] = trial.serve
    trial.saves.save("state")
    assert set(map(type, trial.told)) == {Beat}


def test_a_stop_ends_the_wait_at_once(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    trial.refuse()
    clock.then[20.0] = trial.sender.stop.request
    with pytest.raises(TrialStopped):
        trial.saves.save("state")
    assert clock.now <= 20.2
    assert trial.told[-1] != Waiting(3, 2)  # the store does not serve


class Client:
    """A store's client that tries again by itself for a while, and then refuses or not.

    The service thread looks on meanwhile, ten times a second.
    """

    def __init__(self, trial: Trial, clock: Clock, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.tries = list(seconds)
        self._trial = trial
        self._clock = clock
        self._write = checkpoints.write_file
        monkeypatch.setattr(checkpoints, "write_file", self.write)

    def write(self, *arguments: Any) -> None:
        until = self._clock.now + self.tries.pop(0)
        while self._clock.now < until:
            self._clock.now += 0.1
            self._trial.sender.store.look()
        if self.tries:
            raise ConnectionRefusedError("no endpoint")
        self._write(*arguments)


def test_a_call_that_a_client_keeps_up_by_itself_is_told_before_it_is_refused(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)
    Client(trial, clock, monkeypatch, 15.0, 15.0, 3.0)
    trial.saves.save("state")
    told = [message for message in trial.told if not isinstance(message, Beat)]
    assert told[0] == Waiting(3, 2, calls=True)
    assert [bool(wait.reason) for wait in told[1:-1]] == [True, True]
    assert told[-1] == Waiting(3, 2)


def test_a_save_that_takes_long_is_told_too(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path)
    Client(trial, clock, monkeypatch, 30.0)
    trial.saves.save("state")
    assert trial.told[0] == Beat()  # at once: the trial may have been silent for almost as long as it may
    assert [message for message in trial.told if not isinstance(message, Beat)] == [
        Waiting(3, 2, calls=True), Waiting(3, 2),
    ]  # fmt: skip


def test_a_call_without_an_answer_is_excused_for_ten_minutes(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)
    Client(trial, clock, monkeypatch, CALL_PATIENCE + 300.0)
    ends: list[float] = []
    monkeypatch.setattr(trial.sender, "_send", lambda frame: ends.append(clock.now))
    trial.saves.save("state")
    assert max(ends[:-1]) == pytest.approx(CALL_PATIENCE, abs=1.0)  # the last is the sign of life after the save


def test_the_service_thread_tells_of_a_call_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = Channel.pair()
    service = Service(child := Channel(theirs), 0.01, lambda: None)
    mine.send(encode(Assign(3, 2, {}, 9)))
    assigned = service.next_assignment()
    assert assigned is not None
    store = StoreRetry("s3://b", assigned[1])

    def act() -> int:
        while not isinstance(message := decode_to_driver(mine.receive() or b""), Waiting):
            assert message == Beat()
        return message.calls

    assert store("written", act)  # it would never be answered else
    assert decode_to_driver(mine.receive() or b"") == Waiting(3, 2)
    mine.close()
    child.close()


def test_a_store_that_refuses_to_remove_is_asked_once_each_time(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)
    for name in ("00003/1-1.pkl", "00003/1-2.pkl", "00003/1-3.pkl"):
        trial.store.save(name, "state")
        trial.store.remove_later(name)
    refused: list[str] = []

    def refuse(_: Any, path: str) -> None:
        refused.append(path)
        raise ConnectionRefusedError("no endpoint")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "rm_file", refuse)
        trial.store.tidy()
    assert len(refused) == 1
    trial.store.tidy()
    assert not [path for path in trial.folder.rglob("*") if path.is_file()]


def test_a_state_that_is_not_there_is_no_refusal(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    with pytest.raises(FileNotFoundError):
        trial.store.load("00003/1-1.pkl")
    assert not trial.told


def test_a_state_whose_own_code_fails_is_the_trial_s_fault(tmp_path: Path, clock: Clock) -> None:
    class Broken:
        def __reduce__(self) -> Any:
            raise OSError("a file of the trial's own")

    trial = Trial(tmp_path)
    with pytest.raises(OSError, match="of the trial's own"):
        trial.saves.save(Broken())
    assert not trial.told


def test_a_function_that_runs_alone_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "states").touch()
    with pytest.raises(OSError, match="states"):
        CheckpointStore((tmp_path / "states").as_uri(), 3).save("00003/1-1.pkl", "state")


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (OSError(28, "No space left on device"), True),
        (PermissionError("no"), True),
        (TimeoutError(), True),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="http://nowhere"), True),
        (OSError(errno.EFBIG, "File too large"), False),
        (OSError(errno.ENAMETOOLONG, "File name too long"), False),
        (TypeError("no such argument"), False),
        (ImportError("no s3fs"), False),
        (RuntimeError("a mistake"), False),
    ],
)
def test_whose_fault_it_is(error: Exception, is_fault: bool) -> None:
    assert is_store_fault(error) is is_fault


def test_a_file_size_limit_that_can_be_raised_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, -1))
    assert is_store_fault(OSError(errno.EFBIG, "File too large"))
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 100))  # as `ulimit -f` sets it
    assert not is_store_fault(OSError(errno.EFBIG, "File too large"))


def test_what_no_later_try_could_save_is_not_tried_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(checkpoints, "write_file", refuse)
    trial = Trial(tmp_path)
    for save in (trial.saves.save, trial.saves.keep):
        with pytest.raises(ReportError, match=r"\d+ bytes cannot be saved to file://.* \(File too large\); raise the"):
            save("state")
    assert clock.now == 0.0
    assert not trial.told


def test_a_refusal_is_told_in_few_words() -> None:
    assert refusal("s3://b", "written", OSError(28, os.strerror(28))) == (
        "the store s3://b cannot be written (No space left on device)"
    )
    assert refusal("s3://b", "read", TimeoutError()) == "the store s3://b cannot be read (TimeoutError)"
    assert len(refusal("s3://b", "read", OSError("x" * 10_000))) < 600


def test_trials_do_not_come_back_all_at_once(tmp_path: Path, clock: Clock) -> None:
    pauses = set()
    for _ in range(20):
        began = clock.now
        StoreRetry("s3://b", Trial(tmp_path).sender)._pause(1.0)
        pauses.add(round(clock.now - began, 6))
    assert len(pauses) > 10
    assert all(0.74 <= pause <= 1.26 for pause in pauses)


def test_the_wait_takes_no_random_number_of_the_trial_s(tmp_path: Path, clock: Clock) -> None:
    import random

    random.seed(0)
    before = random.getstate()
    StoreRetry("s3://b", Trial(tmp_path).sender)._pause(1.0)
    assert random.getstate() == before
