"""What one rank saves, and when the driver hears of it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from module_time import patch_time

from maggy_like.distributed import sharded
from maggy_like.distributed.sharded import ShardedStateError
from maggy_like.processes.channel import Channel
from maggy_like.protocol.messages import (
    Assign,
    Beat,
    Checkpointed,
    Noted,
    RankInfo,
    ToDriver,
    Waiting,
    decode_to_driver,
    encode,
)
from maggy_like.protocol.values import ReportError
from maggy_like.storage import checkpoints
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.storage.file_systems import is_store_fault, refusal
from maggy_like.storage.local_files import LocalFiles
from maggy_like.worker.child import saves, stop_state
from maggy_like.worker.child.saves import Saves, StoreRetry
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.service import Service
from maggy_like.worker.child.stop_state import CALL_PATIENCE, QUIET, TrialStopped


class Rank:
    """One rank's saves, and what it told the driver of them."""

    def __init__(
        self,
        directory: Path,
        rank: int = 0,
        world_size: int = 1,
        checkpoint: str | None = None,
        older: tuple[str, ...] = (),
    ) -> None:
        rank_info = RankInfo(rank, world_size, rank, world_size, 0, 1) if world_size > 1 else None
        self.frames: list[bytes] = []
        self.sender = Sender(Assign(3, 2, {}, 9, rank_info=rank_info), self.frames.append)
        self.saves = Saves(CheckpointStore(directory.as_uri(), 3), checkpoint, self.sender, 3, 2, older)

    @property
    def told(self) -> list[Checkpointed]:
        return [message for frame in self.frames if isinstance(message := decode_to_driver(frame), Checkpointed)]

    def step(self, step: int) -> None:
        self.saves.save({"step": step})
        self.saves.reported(step)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.pkl"))


def test_a_state_is_told_of_once_its_step_was_reported(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("state")
    assert rank.told == []
    rank.saves.reported(4)
    rank.saves.reported(5)
    assert rank.told == [Checkpointed(3, 2, 4, "00003/2-1.pkl")]


def test_a_state_that_was_never_measured_is_removed_after_the_next(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.saves.save(1)
    rank.saves.save(2)
    rank.saves.reported(1)
    assert rank.saves.restore(None) == 2
    assert [told.name.rpartition("/")[2] for told in rank.told] == ["2-2.pkl"]
    assert files(tmp_path) == ["2-2.pkl"]


def test_the_newest_state_is_told_of_as_the_function_returns(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.step(1)
    rank.saves.save("the end")
    rank.saves.finish(7)
    assert [told.step for told in rank.told] == [1, 7]


def test_what_may_go_is_gone_when_the_function_has_ended(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    for step in range(1, 4):
        rank.step(step)
    answers: list[tuple[str, ...]] = [(), (rank.told[0].name,), (rank.told[1].name,)]
    answering = threading.Timer(0.05, lambda: [rank.sender.kept.put(answer) for answer in answers])
    answering.start()
    rank.saves.finish(3)
    rank.saves.tidy()
    answering.join()
    assert files(tmp_path) == ["2-3.pkl"]


def test_a_driver_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.worker.child.saves.ANSWER_PATIENCE", 0.01)
    rank = Rank(tmp_path)
    rank.step(1)
    rank.step(2)
    rank.saves.tidy()
    assert files(tmp_path) == ["2-1.pkl", "2-2.pkl"]


def test_only_rank_0_writes_and_tells_and_all_ranks_know_the_url(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, rank, 2) for rank in range(2)]
    for step in range(1, 4):
        for rank in ranks:
            rank.step(step)
    assert [len(rank.told) for rank in ranks] == [3, 0]
    assert files(tmp_path) == ["2-1.pkl", "2-2.pkl", "2-3.pkl"]
    assert [rank.saves.restore(None) for rank in ranks] == [{"step": 3}] * 2


def test_a_rank_removes_nothing_that_rank_0_has_written(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.step(1)
    ranks[1].sender.kept.put((ranks[0].told[0].name,))
    ranks[1].step(2)
    assert files(tmp_path) == ["2-1.pkl"]


def test_what_was_left_by_an_earlier_attempt_is_restored(tmp_path: Path) -> None:
    CheckpointStore(tmp_path.as_uri()).save("00003/1-1.pkl", "earlier")
    rank = Rank(tmp_path, checkpoint="00003/1-1.pkl")
    assert rank.saves.restore(None) == "earlier"
    assert Rank(tmp_path).saves.restore(None) is None


EARLIER = ("00003/1-3.pkl", "00003/1-2.pkl", "00003/1-1.pkl")


@pytest.fixture
def resumed(tmp_path: Path) -> Rank:
    """An attempt that continues from the newest of three states, each of which is its own name."""
    for name in EARLIER:
        CheckpointStore(tmp_path.as_uri()).save(name, name)
    return Rank(tmp_path, checkpoint=EARLIER[0], older=EARLIER[1:])


@pytest.mark.parametrize("damage", ["empty", "truncated", "other bytes", "gone"])
@pytest.mark.parametrize("lost", range(4))
def test_in_the_place_of_a_lost_state_comes_the_newest_that_is_whole(
    resumed: Rank, tmp_path: Path, damage: str, lost: int
) -> None:
    for name in EARLIER[:lost]:
        file, data = tmp_path / name, (tmp_path / name).read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes({"empty": b"", "truncated": data[:-3], "other bytes": bytes(len(data))}[damage])
    whole = (*EARLIER, None)[lost]
    assert [resumed.saves.restore(None) for _ in range(2)] == [whole, whole]
    notes = [message for message in map(decode_to_driver, resumed.frames) if isinstance(message, Noted)]
    assert [(note.subject, note.trial) for note in notes] == [("states", 3)] * bool(lost)
    if lost:
        what = "does not exist" if damage == "gone" else "is damaged"
        assert f"{tmp_path.as_uri()}/{EARLIER[0]} {what}" in notes[0].message
        then = (
            "the trial starts from the beginning"
            if whole is None
            else f"continues from an older one, {tmp_path.as_uri()}/{whole}"
        )
        assert notes[0].message.endswith(then)


def test_a_lost_state_of_this_attempt_is_replaced_by_what_it_continued_from(resumed: Rank, tmp_path: Path) -> None:
    resumed.saves.save("new")
    (tmp_path / "00003" / "2-1.pkl").write_bytes(b"")
    assert resumed.saves.restore(None) == EARLIER[0]
    resumed.saves.reported(5)
    assert not resumed.told  # the driver is not told of a state that cannot be read


def test_a_state_whose_own_code_cannot_be_run_is_no_lost_state(tmp_path: Path) -> None:
    (tmp_path / "00003").mkdir()
    (tmp_path / "00003" / "1-1.pkl").write_bytes(b"cno_such_module\nName\n.")
    rank = Rank(tmp_path, checkpoint="00003/1-1.pkl")
    with pytest.raises(ModuleNotFoundError):
        rank.saves.restore(None)


def test_a_rank_waits_for_what_rank_0_is_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Rank(tmp_path, rank, 2) for rank in range(2)]
    ranks[1].saves.save("state")
    pauses = []

    def write_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            ranks[0].saves.save("state")

    patch_time(monkeypatch, checkpoints, sleep=write_meanwhile)
    assert ranks[1].saves.restore(None) == "state"
    assert pauses == [0.01, 0.02, 0.04]


def test_a_rank_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, pauses = Rank(tmp_path, 1, 2), []
    patch_time(monkeypatch, checkpoints, sleep=pauses.append)
    rank.saves.save("state")
    with pytest.raises(ReportError, match=r"did not write file://.*2-1\.pkl within 900 s; call checkpoint\(\)"):
        rank.saves.restore(None)
    assert sum(pauses) == pytest.approx(checkpoints.WRITE_PATIENCE, abs=1)


def test_no_rank_waits_for_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    assert Rank(tmp_path, 1, 2, "00003/1-1.pkl").saves.restore(None) is None  # as on rank 0, which says so


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk that takes no more than the beginning of a file; undo it, and there is room again."""

    def write(fs: Any, path: str, data: bytes) -> None:
        Path(path).write_bytes(data[:1])
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints, "write_file", write)
    return monkeypatch


def test_a_save_that_fails_changes_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rank = Rank(tmp_path)
    rank.step(1)
    rank.saves.save("middle of step 2")
    full_disk = request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="no space left"):
        rank.saves.save("end of step 2")
    full_disk.undo()
    rank.saves.reported(2)
    rank.sender.kept.put((rank.told[0].name,))
    assert [path.name for path in sorted((tmp_path / "00003").iterdir())] == ["2-1.pkl", "2-2.pkl"]
    assert [told.name.rpartition("/")[2] for told in rank.told] == ["2-1.pkl", "2-2.pkl"]
    assert rank.saves.restore(None) == "middle of step 2"
    rank.step(3)
    assert [told.name.rpartition("/")[2] for told in rank.told[2:]] == ["2-4.pkl"]
    assert files(tmp_path) == ["2-2.pkl", "2-4.pkl"]


def test_a_state_that_cannot_be_pickled_changes_nothing(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("first")
    with pytest.raises(ReportError, match="cannot be saved"):
        rank.saves.save(iter(x for x in "ab"))
    rank.saves.reported(1)
    assert rank.saves.restore(None) == "first"
    assert files(tmp_path) == ["2-1.pkl"]


class Background:
    """Saves in the background, of states that are their own words: ``fails`` does, ``goes on`` has not ended yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.interrupted = False
        monkeypatch.setattr(saves, "_is_sharded", lambda state: True)
        monkeypatch.setattr(sharded, "save", self.save)
        monkeypatch.setattr(sharded, "load", lambda url, into: (self.path(url) / "state").read_text())

    @staticmethod
    def path(url: str) -> Path:
        return Path(url.removeprefix("file://"))

    def save(self, url: str, state: str) -> Any:
        self.path(url).mkdir(parents=True)
        (self.path(url) / "state").write_text(state)
        background = self

        class Saving:
            def is_written(self) -> bool:
                return state not in ("fails", "goes on")

            def wait(self) -> None:
                if background.interrupted:
                    raise KeyboardInterrupt
                if state == "fails":
                    raise ShardedStateError(f"{url}: no space left")

        return Saving()


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Background:
    return Background(monkeypatch)


def directories(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.dcp"))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("call", ["save", "restore", "settle", "finish"])
def test_a_failed_save_in_the_background_is_raised_and_never_told_of(
    tmp_path: Path, background: Background, rank: int, call: str
) -> None:
    it = Rank(tmp_path, rank, 2)
    calls = {
        "save": lambda: it.saves.save("third"),
        "restore": lambda: it.saves.restore("into"),
        "settle": it.saves.settle,
        "finish": lambda: it.saves.finish(2),
    }
    it.saves.save("first")
    it.saves.reported(1)
    it.saves.save("fails")
    it.saves.reported(2)  # raises nothing: another rank may not have heard of it yet, and goes on
    with pytest.raises(ShardedStateError, match=r"2-2\.dcp: no space left"):
        calls[call]()
    it.saves.reported(3)
    it.saves.finish(3)
    assert [told.step for told in it.told] == ([] if rank else [1])
    assert it.saves.restore("into") == "first"
    it.saves.save("third")
    it.saves.reported(4)
    assert [told.name.rpartition("/")[2] for told in it.told[1:]] == ([] if rank else ["2-3.dcp"])
    assert directories(tmp_path) == (["2-1.dcp", "2-2.dcp", "2-3.dcp"] if rank else ["2-1.dcp", "2-3.dcp"])


def test_where_a_save_in_the_background_fails_the_state_before_it_counts(
    tmp_path: Path, background: Background
) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("middle of step 1")
    rank.saves.save("fails")
    rank.saves.reported(1)
    with pytest.raises(ShardedStateError):
        rank.saves.settle()
    rank.saves.reported(2)
    assert [(told.step, told.name.rpartition("/")[2]) for told in rank.told] == [(1, "2-1.dcp")]
    assert directories(tmp_path) == ["2-1.dcp"]


def test_the_state_before_goes_only_when_the_one_in_the_background_is_written(
    tmp_path: Path, background: Background
) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("middle of step 1")
    rank.saves.save("goes on")
    rank.saves.reported(1)
    assert (rank.told, directories(tmp_path)) == ([], ["2-1.dcp", "2-2.dcp"])
    rank.saves.settle()
    rank.saves.reported(2)
    assert [(told.step, told.name.rpartition("/")[2]) for told in rank.told] == [(1, "2-2.dcp")]
    assert directories(tmp_path) == ["2-2.dcp"]


def test_an_interrupted_wait_is_no_failure(tmp_path: Path, background: Background) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("goes on")
    background.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        rank.saves.restore("into")
    background.interrupted = False
    assert rank.saves.restore("into") == "goes on"
    assert directories(tmp_path) == ["2-1.dcp"]


ACTS = st.lists(st.sampled_from(["save", "report", "discard"]), max_size=25)


@settings(max_examples=examples(100))
@given(acts=ACTS)
def test_what_was_told_of_is_there_until_it_may_go(tmp_path_factory: pytest.TempPathFactory, acts: list[str]) -> None:
    directory: Any = tmp_path_factory.mktemp("store")
    rank = Rank(directory)
    step, may_go = 0, set()
    for act in [*acts, "save", "report"]:
        match act:
            case "save":
                rank.saves.save(step)
            case "report":
                step += 1
                rank.saves.reported(step)
            case "discard" if len(rank.told) > 1:
                may_go.add(rank.told[-2].name)
                rank.sender.kept.put((rank.told[-2].name,))
        for told in rank.told:
            path = directory / told.name
            assert path.exists() or told.name in may_go
            if path.exists():
                assert rank.saves._store.load(told.name) <= told.step
    steps = [told.step for told in rank.told]
    assert steps == sorted(set(steps))
    assert len(rank.told) == len({told.name for told in rank.told})


# -- what a trial does while the store refuses ----------------------------------------------------
class Clock:
    """Time that passes in pauses alone; what ``then`` names by its second happens meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.then: dict[float, Any] = {}
        for module in (saves, stop_state):
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

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "states"
        self.frames: list[bytes] = []
        self.sender = Sender(Assign(3, 2, {}, 9), self.frames.append)
        self.store = CheckpointStore(self.directory.as_uri(), 3, retry=StoreRetry(self.directory.as_uri(), self.sender))
        self.saves = Saves(self.store, None, self.sender, 3, 2)

    @property
    def told(self) -> list[ToDriver]:
        return [decode_to_driver(frame) for frame in self.frames]

    def refuse(self) -> None:
        if self.directory.exists():
            self.directory.rename(self.directory.with_name("away"))
        self.directory.touch()

    def serve(self) -> None:
        self.directory.unlink()
        if (away := self.directory.with_name("away")).exists():
            away.rename(self.directory)


def test_a_save_waits_until_the_store_serves(tmp_path: Path, clock: Clock) -> None:
    trial = Trial(tmp_path)
    trial.refuse()
    clock.then[25.0] = trial.serve
    trial.saves.save({"step": 1})
    assert 25.0 <= clock.now <= 25.0 + 1.5 * saves.LONGEST_PAUSE
    assert trial.saves.restore(None) == {"step": 1}
    waits = [message for message in trial.told if isinstance(message, Waiting)]
    assert {bool(wait.reason) for wait in waits[:-1]} == {True}
    assert waits[-1] == Waiting(3, 2)
    assert "cannot be written (" in waits[0].reason
    assert sorted(path.name for path in trial.directory.rglob("*") if path.is_file()) == ["2-1.pkl"]


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
    assert (trial.directory / "returned.pkl").exists()


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
    monkeypatch.setattr(stop_state, "QUIET", 0.05)
    mine, theirs = Channel.pair()
    service = Service(child := Channel(theirs), 0.01, lambda: None)
    mine.send(encode(Assign(3, 2, {}, 9)))
    assigned = service.next_assignment()
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
        patch.setattr(LocalFiles, "rm_file", refuse)
        trial.store.tidy()
    assert len(refused) == 1
    trial.store.tidy()
    assert not [path for path in trial.directory.rglob("*") if path.is_file()]


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
