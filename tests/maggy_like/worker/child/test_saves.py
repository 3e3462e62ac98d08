"""What one rank saves, and when the driver hears of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from module_time import patch_time

from maggy_like.distributed import sharded
from maggy_like.distributed.sharded import ShardedStateError
from maggy_like.protocol.messages import Assign, Beat, Checkpointed, Noted, RankInfo, decode_to_driver
from maggy_like.protocol.values import ReportError
from maggy_like.storage import checkpoints
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child import saves
from maggy_like.worker.child.saves import Saves
from maggy_like.worker.child.sender import Sender


class Rank:
    """One rank's saves, and what it told the driver of them."""

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
        checkpoint: str | None = None,
        older: tuple[str, ...] = (),
    ) -> None:
        rank_info = RankInfo(rank, world_size, rank, world_size, 0, 1) if world_size > 1 else None
        self.frames: list[bytes] = []
        self.sender = Sender(Assign(3, 2, {}, 9, rank_info=rank_info), self.frames.append)
        self.saves = Saves(CheckpointStore(folder.as_uri(), 3), checkpoint, self.sender, 3, 2, older)

    @property
    def told(self) -> list[Checkpointed]:
        return [message for frame in self.frames if isinstance(message := decode_to_driver(frame), Checkpointed)]

    def step(self, step: int) -> None:
        self.saves.save({"step": step})
        self.saves.reported(step)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.pkl"))


def test_a_state_is_told_of_once_its_step_was_reported(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("state")
    assert rank.told == []
    rank.saves.reported(4)
    rank.saves.reported(5)
    assert rank.told == [Checkpointed(3, 2, 4, "00003/2-1.pkl")]


def test_saving_shows_that_the_trial_goes_on(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("state")
    assert [decode_to_driver(frame) for frame in rank.frames] == [Beat()]


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


def test_states_go_only_when_the_driver_says_so(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    for step in range(1, 4):
        rank.step(step)
    assert files(tmp_path) == ["2-1.pkl", "2-2.pkl", "2-3.pkl"]
    rank.sender.kept.put((rank.told[0].name,))
    rank.step(4)
    assert files(tmp_path) == ["2-2.pkl", "2-3.pkl", "2-4.pkl"]


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


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.dcp"))


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
    assert folders(tmp_path) == (["2-1.dcp", "2-2.dcp", "2-3.dcp"] if rank else ["2-1.dcp", "2-3.dcp"])


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
    assert folders(tmp_path) == ["2-1.dcp"]


def test_the_state_before_goes_only_when_the_one_in_the_background_is_written(
    tmp_path: Path, background: Background
) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("middle of step 1")
    rank.saves.save("goes on")
    rank.saves.reported(1)
    assert (rank.told, folders(tmp_path)) == ([], ["2-1.dcp", "2-2.dcp"])
    rank.saves.settle()
    rank.saves.reported(2)
    assert [(told.step, told.name.rpartition("/")[2]) for told in rank.told] == [(1, "2-2.dcp")]
    assert folders(tmp_path) == ["2-2.dcp"]


def test_an_interrupted_wait_is_no_failure(tmp_path: Path, background: Background) -> None:
    rank = Rank(tmp_path)
    rank.saves.save("goes on")
    background.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        rank.saves.restore("into")
    background.interrupted = False
    assert rank.saves.restore("into") == "goes on"
    assert folders(tmp_path) == ["2-1.dcp"]


ACTS = st.lists(st.sampled_from(["save", "report", "discard"]), max_size=25)


@settings(max_examples=examples(100))
@given(acts=ACTS)
def test_what_was_told_of_is_there_until_it_may_go(tmp_path_factory: pytest.TempPathFactory, acts: list[str]) -> None:
    folder: Any = tmp_path_factory.mktemp("store")
    rank = Rank(folder)
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
            path = folder / told.name
            assert path.exists() or told.name in may_go
            if path.exists():
                assert rank.saves._store.load(told.name) <= told.step
    steps = [told.step for told in rank.told]
    assert steps == sorted(set(steps))
    assert len(rank.told) == len({told.name for told in rank.told})
