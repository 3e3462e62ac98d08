"""What one rank saves, and when the driver hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maggy_like.messages import Assign, Beat, Checkpointed, Place, decode_to_driver
from maggy_like.worker import checkpoints
from maggy_like.worker.checkpoints import CheckpointStore
from maggy_like.worker.metrics import ReportError
from maggy_like.worker.saves import Saves
from maggy_like.worker.sender import Sender


class Rank:
    """One rank's saves, and what it told the driver of them."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, checkpoint: str | None = None) -> None:
        place = Place(rank, world_size, rank, world_size, 0, 1) if world_size > 1 else None
        self.frames: list[bytes] = []
        self.sender = Sender(Assign(3, 2, {}, 9, place=place), self.frames.append)
        self.saves = Saves(CheckpointStore(folder.as_uri()), checkpoint, self.sender, 3, 2)

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
    assert rank.told == [Checkpointed(3, 2, 4, f"{tmp_path.as_uri()}/00003/2-1.pkl")]


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
    assert [told.url.rpartition("/")[2] for told in rank.told] == ["2-2.pkl"]
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
    rank.sender.discard.put(rank.told[0].url)
    rank.step(4)
    assert files(tmp_path) == ["2-2.pkl", "2-3.pkl", "2-4.pkl"]


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
    ranks[1].sender.discard.put(ranks[0].told[0].url)
    ranks[1].step(2)
    assert files(tmp_path) == ["2-1.pkl"]


def test_what_was_left_by_an_earlier_attempt_is_restored(tmp_path: Path) -> None:
    url = (tmp_path / "earlier.pkl").as_uri()
    CheckpointStore(tmp_path.as_uri()).save(url, "earlier")
    rank = Rank(tmp_path, checkpoint=url)
    assert rank.saves.restore(None) == "earlier"
    assert Rank(tmp_path).saves.restore(None) is None


def test_a_rank_waits_for_what_rank_0_is_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Rank(tmp_path, rank, 2) for rank in range(2)]
    ranks[1].saves.save("state")
    pauses = []

    def write_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            ranks[0].saves.save("state")

    monkeypatch.setattr(checkpoints.time, "sleep", write_meanwhile)
    assert ranks[1].saves.restore(None) == "state"
    assert pauses == [0.01, 0.02, 0.04]


def test_a_rank_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, pauses = Rank(tmp_path, 1, 2), []
    monkeypatch.setattr(checkpoints.time, "sleep", pauses.append)
    rank.saves.save("state")
    with pytest.raises(ReportError, match=r"no file://.*2-1\.pkl for 600 s; all ranks must call checkpoint\(\)"):
        rank.saves.restore(None)
    assert sum(pauses) == pytest.approx(checkpoints.WRITE_PATIENCE, abs=1)


def test_no_rank_waits_for_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Rank(tmp_path, 1, 2, (tmp_path / "gone.pkl").as_uri()).saves.restore(None)


ACTS = st.lists(st.sampled_from(["save", "report", "discard"]), max_size=25)


@settings(max_examples=100, derandomize=True, deadline=None)
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
                may_go.add(rank.told[-2].url)
                rank.sender.discard.put(rank.told[-2].url)
        for told in rank.told:
            path = Path(told.url.removeprefix("file://"))
            assert path.exists() or told.url in may_go
            if path.exists():
                assert rank.saves._store.load(told.url) <= told.step
    steps = [told.step for told in rank.told]
    assert steps == sorted(set(steps))
    assert len(rank.told) == len({told.url for told in rank.told})
