"""What every backend of a journal promises: local file, memory, and any object store by fsspec."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from module_time import patch_time

from maggy_like.errors import JournalError, StoreError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import (
    FORMAT_VERSION,
    Journal,
    RunHeader,
    RunStatus,
    RunTotals,
    backend_of,
    read_ends,
    read_journal,
)
from maggy_like.storage.journal.journal import Mark
from maggy_like.storage.journal.object_store import SEGMENT, ObjectStoreBackend
from optimizers.core.events import AttemptStarted, CheckpointSaved, Event, TrialCreated

HEADER = RunHeader(FORMAT_VERSION, "run", 1.5, {"x": {"type": "float"}}, "random", ["max"], [], 0, 27)
CREATED = TrialCreated(0, {"x": 0.5}, 0)
STARTED = AttemptStarted(0, 1, 3, 27, 12.25, {"x": 0.5}, 0)


@pytest.fixture(params=["path", "file", "memory", "mount", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "s3":
        for name, value in request.getfixturevalue("object_store").items():
            monkeypatch.setenv(name, value)
        return f"s3://runs/{uuid.uuid4().hex}/run"
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/run"
    directory = tmp_path / "deep" / "run"
    return str(directory) if request.param == "path" else f"{request.param}://{directory}"


def written(url: str, *batches: list[Event]) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    for batch in batches:
        journal.append(batch)
    journal.close()


def test_nothing_is_there_before_the_header(url: str) -> None:
    assert not backend_of(url).exists()
    with pytest.raises(JournalError, match=r"there is no journal in .*run; use the directory of a run"):
        read_journal(backend_of(url))
    Journal(backend_of(url)).close()
    assert not backend_of(url).exists()
    written(url)
    assert backend_of(url).exists()


def test_what_was_appended_is_read_in_order(url: str) -> None:
    written(url, [CREATED], [], [STARTED, CheckpointSaved(0, 1, 3, "00000/1-1.pkl")])
    contents = read_journal(backend_of(url))
    assert contents.header == HEADER
    assert contents.events == [CREATED, STARTED, CheckpointSaved(0, 1, 3, "00000/1-1.pkl")]
    assert not contents.damage
    assert contents.last == 4


def test_a_store_that_has_just_refused_is_asked_nothing_as_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}/run"
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    calls: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        calls.append("call")
        raise ConnectionRefusedError("no endpoint")

    with monkeypatch.context() as patch:
        for name in ("pipe_file", "cat_file", "rm_file", "info", "ls"):
            patch.setattr(MemoryFileSystem, name, refuse)
        with pytest.raises(StoreError, match="no endpoint"):
            journal.append([CREATED])
        asked = len(calls)
        with pytest.raises(JournalError, match=r"cannot be written; continue with resume=True"):
            journal.note(RunStatus(Ending.INTERRUPTED, 2.5, 1.0))
        journal.close()
        assert asked == len(calls)
    again = Journal(backend_of(url))
    again.read()  # a driver of this process need not wait until the lease lapses
    again.append([CREATED])
    again.note(RunStatus(Ending.COMPLETED, 3.5, 1.0))
    again.close()


@pytest.mark.parametrize("best", [0.5, float("inf"), float("-inf"), None])
def test_the_best_value_of_a_run_is_read_from_its_end(url: str, best: float | None) -> None:
    written(url, [CREATED])
    journal = Journal(backend_of(url))
    journal.read()
    ended = RunStatus(Ending.COMPLETED, 3.5, 1.0, totals=RunTotals("loss", "min", 1.0, best_value=best))
    journal.note(ended)
    journal.close()
    ends = read_ends(backend_of(url))
    assert ends is not None
    assert ends.ended == ended


def test_a_journal_that_is_taken_up_goes_on(url: str) -> None:
    written(url, [CREATED])
    journal = Journal(backend_of(url))
    journal.read()
    journal.append([STARTED])
    journal.close()
    contents = read_journal(backend_of(url))
    assert contents.events == [CREATED, STARTED]
    assert not contents.damage


def test_an_append_is_there_at_once(url: str) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.append([CREATED])
    assert read_journal(backend_of(url)).events == [CREATED]
    journal.close()


def test_more_than_fits_into_one_segment(url: str) -> None:
    events = [TrialCreated(n, {"text": "x" * (SEGMENT // 10)}) for n in range(35)]
    events.append(TrialCreated(35, {"text": "y" * (2 * SEGMENT)}))
    written(url, *([event] for event in events))
    contents = read_journal(backend_of(url))
    assert contents.events == events
    assert not contents.damage
    sizes = [len(part.data) for part in backend_of(url).read()]
    assert url.startswith(("memory", "mount", "s3")) == (len(sizes) == 5)
    assert all(size <= SEGMENT for size in sizes[:-1]) or len(sizes) == 1


@pytest.mark.parametrize("before", [0, SEGMENT // 2], ids=["a new segment", "one that has room"])
def test_an_append_whose_answer_alone_was_lost_stands_once(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}/run"
    events = [TrialCreated(n, {"text": "x" * size}) for n, size in enumerate([SEGMENT - before, SEGMENT // 3, SEGMENT])]
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.append(events[:1])
    put = MemoryFileSystem.pipe_file

    def put_and_fail(self: MemoryFileSystem, *args: Any, **options: Any) -> None:
        put(self, *args, **options)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", put_and_fail)
        with pytest.raises(StoreError, match="no answer"):
            journal.append(events[1:2])
    journal.append(events[1:])  # again, with what has come meanwhile
    journal.close()
    contents = read_journal(backend_of(url))
    assert contents.events == events
    assert not contents.damage


def test_a_second_driver_is_refused_until_the_first_has_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.storage.journal.journal.LOCK_PAUSE", 0.001)
    first = Journal(backend_of(url))
    with pytest.raises(JournalError, match=r"the run in .*run is in use by .*wait until it ends, call stop\(\)"):
        Journal(backend_of(url))
    first.renew()
    first.close()
    Journal(backend_of(url)).close()


def test_a_mended_journal_takes_the_place_of_the_damaged_one(url: str) -> None:
    written(url, [CREATED], [STARTED])
    before = list(backend_of(url).read())
    journal = Journal(backend_of(url))
    journal.read()
    kept = journal.replace(HEADER, [STARTED])
    journal.append([CREATED])
    journal.close()
    contents = read_journal(backend_of(url))
    assert contents.events == [STARTED, CREATED]
    assert not contents.damage
    assert "damaged-1" in kept
    kept_data = read_kept(kept)
    assert kept_data == b"".join(part.data for part in before)


def read_kept(kept: str) -> bytes:
    import fsspec

    fs, path = fsspec.core.url_to_fs(kept)
    files = fs.ls(path, detail=False) if fs.isdir(path) else [path]
    return b"".join(fs.cat_file(file) for file in sorted(files))


def test_every_line_is_plain_json_with_its_number(url: str) -> None:
    written(url, [CREATED])
    data = b"".join(part.data for part in backend_of(url).read())
    records = [msgspec.json.decode(line) for line in data.splitlines()]
    assert [record["n"] for record in records] == [1, 2]
    assert all(len(record["crc"]) == 8 for record in records)
    assert records[1]["config"] == {"x": 0.5}


def test_who_follows_reads_anew_after_a_repair(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair writes the whole journal into its first file again."""
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", 300)
    batches = [[TrialCreated(number, {"x": 0.5}, number)] for number in range(8)]
    written(url, *batches)
    read, mark = backend_of(url).added(Mark()) or (b"", Mark())
    assert len(read.splitlines()) == 9
    journal = Journal(backend_of(url))
    journal.read()
    journal.replace(HEADER, [event for batch in batches for event in batch])
    journal.close()
    assert backend_of(url).added(mark) is None
    again, _ = backend_of(url).added(Mark()) or (b"", Mark())
    assert len(again.splitlines()) == 9


class Network:
    """A file system whose writes of the journal may be kept on their way, and take effect when the test lets them."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.keeps = False
        self.kept: list[tuple[str, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fs, name)

    def pipe_file(self, path: str, data: bytes, **options: Any) -> None:
        if self.keeps and "journal-" in path:
            self.kept.append((path, data))
            raise TimeoutError("no answer")
        self.fs.pipe_file(path, data, **options)


class Succession:
    """Drivers that take a run over from each other, while the writes of all of them may arrive late."""

    def __init__(self) -> None:
        self.network = Network()
        self.path = f"/{uuid.uuid4().hex}"
        self.overtaken: list[Journal] = []
        self.events: list[Event] = []
        self.unsafe: list[Event] = []
        self.made = 0
        self.driver = Journal(self.backend(), "call")
        self.driver.begin(HEADER)

    def backend(self) -> ObjectStoreBackend:
        return ObjectStoreBackend(self.network, self.path, f"memory:/{self.path}")

    def append(self, size: int) -> None:
        """Append an event, with those that could not be written before."""
        events = [*self.unsafe, self.event(size)]
        try:
            self.driver.append(events)
        except StoreError:
            self.unsafe = events
        else:
            self.events, self.unsafe = self.events + events, []

    def take_over(self, size: int) -> None:
        self.overtaken.append(self.driver)
        self.driver = Journal(self.backend(), "call")
        known = self.driver.read().events
        assert known[: len(self.events)] == self.events
        self.events, self.unsafe = known, []
        self.network.keeps = False
        self.append(size)

    def append_late(self, size: int) -> None:
        """A driver that was overtaken has not seen that yet."""
        if self.overtaken:
            self.overtaken[-1].append([self.event(size)])

    def keep(self, _: int) -> None:
        self.network.keeps = True

    def serve(self, _: int) -> None:
        self.network.keeps = False

    def arrive(self, size: int) -> None:
        """One of the writes that were kept takes effect."""
        if self.network.kept:
            self.network.fs.pipe_file(*self.network.kept.pop(size % len(self.network.kept)))

    def event(self, size: int) -> Event:
        self.made += 1
        return TrialCreated(self.made, {"text": "x" * size}, self.made)

    def check(self) -> None:
        contents = read_journal(self.backend())
        assert not contents.damage
        assert contents.events[: len(self.events)] == self.events
        # Whose answer alone was lost may be there.
        assert contents.events[len(self.events) :] == self.unsafe[: len(contents.events) - len(self.events)]


STEPS = ("append", "take_over", "append_late", "keep", "serve", "arrive")


@pytest.fixture
def quick_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", sleep=lambda _: None)
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", 1000)


@pytest.mark.usefixtures("quick_successors")
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 700)), max_size=25))
@example([("keep", 0), ("append", 50), ("serve", 0), ("append", 50), ("arrive", 0)])
@example([("append", 600), ("keep", 0), ("append", 600), ("take_over", 50), ("arrive", 0), ("append", 600)])
def test_what_arrives_late_changes_nothing(steps: list[tuple[str, int]]) -> None:
    succession = Succession()
    for step, size in steps:
        if step != "append_late" or not succession.network.keeps:
            getattr(succession, step)(size)
        succession.check()


@pytest.mark.usefixtures("quick_successors")
@pytest.mark.parametrize("size", [50, 900], ids=["the present segment", "the next segment"])
def test_who_follows_reads_what_a_successor_has_put_and_nothing_late(size: int) -> None:
    succession = Succession()
    succession.append(400)
    read, mark = succession.backend().added(Mark()) or (b"", Mark())
    assert len(read.splitlines()) == 2
    succession.keep(0)
    succession.append(size)
    succession.take_over(100)
    succession.arrive(0)
    succession.append_late(size)
    assert succession.backend().added(mark) is None
    again, mark = succession.backend().added(Mark()) or (b"", Mark())
    assert again == b"".join(part.data for part in succession.backend().read())
    succession.append(100)
    added, _ = succession.backend().added(mark) or (b"", Mark())
    assert len(added.splitlines()) == 1


def test_a_journal_of_one_driver_is_read_as_it_was_written_before_there_were_epochs(url: str) -> None:
    """The first driver's objects have the names that they always had."""
    written(url, [CREATED])
    names = [part.name.rpartition("/")[2] for part in backend_of(url).read()]
    if url.startswith("mount"):
        names = [re.sub(r"-1\.2-\d+", "", name) for name in names]  # each put has a turn and a size there
    assert names == ["journal-000001.jsonl" if url.startswith(("memory", "mount", "s3")) else "journal.jsonl"]
