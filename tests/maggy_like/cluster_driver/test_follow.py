"""Following a journal, and the small objects beside it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from module_time import patch_time

from maggy_like.cluster_driver import follow
from maggy_like.cluster_driver.follow import LONGEST, MOST, LogLineReader, LogLineWriter, RunFiles
from maggy_like.cluster_driver.tasks import ROUNDS, Keys, from_record, to_record
from maggy_like.cluster_driver.worker import find_driver
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.progress import summary
from maggy_like.driver.stream import Entry, JournalReader
from maggy_like.errors import EngineError, StoreError, TrialsFailedError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.storage.control_files import ControlFiles, DriverRecord, ErrorRecord, StopRequestRecord
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, RunStatus, backend_of
from maggy_like.storage.journal.object_store import ObjectStoreBackend
from optimizers.core.events import AttemptEnded, AttemptStarted, Measured, TrialCreated
from optimizers.core.trial import TrialState
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

HEADER = RunHeader(FORMAT_VERSION, "run", 1.0, SearchSpace({"x": Float(0, 1)}).to_json(), "random", [None], [], 0, 9)
SHOWN = Snapshot("run", "here", "random", "max", "searching", 0.0)


@pytest.fixture(params=["local", "remote"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/run"


def created(*numbers: int) -> list[Any]:
    return [TrialCreated(number, {"x": 0.5}) for number in numbers]


def look(reader: JournalReader) -> list[Entry]:
    return list(itertools.chain.from_iterable(reader.look()))


def events(reader: JournalReader) -> list[Any]:
    return [entry.event for entry in look(reader)]


def test_each_event_is_given_once_across_segments(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", 100)  # each append has a segment of its own
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    follower = JournalReader(backend_of(url))
    assert events(follower) == []
    journal.append(created(0, 1))
    assert events(follower) == created(0, 1)
    assert events(follower) == []
    journal.append(created(2))
    journal.append(created(3))
    journal.note(RunStatus(Ending.COMPLETED, 9.0))
    assert events(follower) == created(2, 3)
    assert follower.ended is not None
    assert [trial.id for trial in follower.machine.study.trials] == [0, 1, 2, 3]
    journal.close()


def test_an_error_that_the_driver_writes_after_the_journal_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.note(RunStatus(Ending.ERROR, 9.0))
    journal.close()
    files, record = ControlFiles(url), DriverRecord("call", 0, "", "host", 1.0)
    files.publish(record)
    error = ErrorRecord("EngineError", "the driver has ended")
    over = msgspec.structs.replace(record, is_over=True, error=error)
    patch_time(monkeypatch, follow, sleep=lambda _: files.publish(over))
    assert follow.error_of_driver(RunFiles(url)) == error
    monkeypatch.setattr(follow, "RECORD_PATIENCE", 0.0)
    files.publish(record)  # its machine is gone
    assert follow.error_of_driver(RunFiles(url)) is None


def test_a_run_whose_driver_was_killed_is_shown_as_killed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.note(RunStatus(Ending.RUNNING, 10.0))
    journal.append([*created(0), AttemptStarted(0, 1, 0, 9, 15.0)])
    journal.close()
    run = RunFiles(url)
    run.look(now=True)
    assert run.snapshot.phase is Phase.SEARCHING
    patch_time(monkeypatch, follow, monotonic=lambda: time.monotonic() + 10.0)  # later
    assert run.is_over()
    run.look(now=True)
    assert summary(run.snapshot) == [
        "run: killed after 0:05 or more, 1 trial (1 running)",
        f"files in {url}",
        "pass name='run', resume=True to continue it",
    ]


def test_a_snapshot_costs_the_same_however_many_trials_have_ended(tmp_path: Path) -> None:
    assert seconds_per_snapshot(tmp_path / "long", 3000) < 10 * seconds_per_snapshot(tmp_path / "short", 10)


def seconds_per_snapshot(directory: Path, trials: int) -> float:
    """Return the core time of this thread for a snapshot of a run of which one more trial runs."""
    journal = Journal(backend_of(str(directory)))
    journal.begin(HEADER)
    for trial in range(trials):
        started, ended = AttemptStarted(trial, 1, 0, 9, 15.0), AttemptEnded(trial, 1, TrialState.COMPLETED, 16.0, 0.5)
        journal.append([*created(trial), started, ended])
    journal.append([*created(trials), AttemptStarted(trials, 1, 3, 9, 17.0)])
    journal.close()
    run = RunFiles(str(directory))
    run.look(now=True)
    assert [(line.index, line.trial) for line in run.snapshot.workers] == [(3, trials)]
    before = time.thread_time()
    for _ in range(20):
        run.look()
    return time.thread_time() - before


def test_a_driver_that_writes_all_the_time_does_not_keep_the_reader(url: str) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.append(created(0))
    reader, parts = JournalReader(backend_of(url)), list[Any]()
    for part in reader.look():
        parts.append(part)
        journal.append(created(len(parts)))
    assert len(parts) == 1
    assert events(reader) == created(1)
    journal.close()


def test_a_driver_that_writes_faster_than_it_is_read_does_not_keep_the_watcher(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    run = RunFiles(url, SHOWN)
    monkeypatch.setattr(run.reader, "look", lambda: itertools.repeat([]))
    patch_time(monkeypatch, follow, monotonic=itertools.count(time.monotonic() + 10.0, 0.1).__next__)
    run.look()
    journal.close()


def test_a_repaired_journal_is_read_anew_and_nothing_given_twice(url: str) -> None:
    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.append(created(0, 1))
    follower = JournalReader(backend_of(url))
    assert events(follower) == created(0, 1)
    journal.replace(HEADER, created(0, 1))
    journal.append(created(2))
    assert events(follower) == created(2)
    journal.close()


def test_the_value_of_a_trial_is_that_as_of_each_event(url: str) -> None:
    def attempt(number: int, value: float) -> list[Any]:
        return [
            AttemptStarted(0, number, 0, 9 * number, 1.0),
            Measured(0, number, "score", {"score": ([9 * number], [value])}, direction="max" if number == 1 else None),
            AttemptEnded(0, number, TrialState.PAUSED, 2.0, value),
        ]

    journal = Journal(backend_of(url))
    journal.begin(HEADER)
    journal.append(created(0) + attempt(1, 0.25) + attempt(2, 0.5))
    follower = JournalReader(backend_of(url))
    first = look(follower)
    journal.append(attempt(3, 0.75) + attempt(4, 0.875))
    ends = [entry.value for entry in first + look(follower) if isinstance(entry.event, AttemptEnded)]
    assert ends == [0.25, 0.5, 0.75, 0.875]
    journal.close()


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    journal = Journal(backend_of(str(tmp_path)))
    journal.begin(HEADER)
    follower = JournalReader(backend_of(str(tmp_path)))
    whole = (tmp_path / "journal.jsonl").read_bytes()
    journal.append(created(0))
    added = (tmp_path / "journal.jsonl").read_bytes()
    journal.close()
    (tmp_path / "journal.jsonl").write_bytes(added[: len(whole) + 9])
    assert events(follower) == []
    (tmp_path / "journal.jsonl").write_bytes(added)
    assert events(follower) == created(0)


def test_a_driver_of_the_same_call_takes_a_lease_over_and_another_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    patch_time(monkeypatch, "maggy_like.storage.journal.object_store", sleep=slept.append)
    first, second, other = (backend_of("memory://succession/run") for _ in range(3))
    assert isinstance(first, ObjectStoreBackend)
    first.hold("call")
    with pytest.raises(Exception, match="is in use by process"):
        other.hold("another call")
    second.hold("call")
    assert slept[-1] > 10  # one that is cut off has looked at the lease by then
    monkeypatch.setattr("maggy_like.storage.journal.object_store.RENEWAL", 0.0)
    with pytest.raises(Exception, match="was taken over"):
        first.renew()
    second.renew()


def test_notes_are_of_one_call(url: str) -> None:
    files = ControlFiles(url)
    assert files.driver() is None
    assert files.stop_wanted("call") is None
    journal = Journal(backend_of(url))  # makes the directory, as the client does
    journal.begin(HEADER)
    journal.close()
    files.publish(DriverRecord("call", 0, "tcp://127.0.0.1:1", "host", 5.0))
    files.ask_to_stop(StopRequestRecord("call", Ending.INTERRUPTED))
    assert files.stop_wanted("call") == "interrupted"
    assert files.stop_wanted("another") is None
    assert files.has_directory()
    assert not ControlFiles(f"{url}-elsewhere").has_directory()
    files.clear("call")
    assert files.stop_wanted("call") == "interrupted"
    files.clear("another")
    assert files.driver() is None


def test_workers_look_for_a_driver_that_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.cluster_driver.worker.LOOK", 0.01)
    files = ControlFiles(str(tmp_path))
    assert find_driver(files, "call", "", 0.01) is None
    files.publish(DriverRecord("another", 0, "tcp://127.0.0.1:1", "host", 5.0))
    assert find_driver(files, "call", "", 0.01) is None
    lost = "tcp://127.0.0.1:1"  # nobody listens there
    files.publish(DriverRecord("call", 0, lost, "host", 5.0))
    assert find_driver(files, "call", lost, 0.01) is None
    files.publish(DriverRecord("call", 1, "tcp://127.0.0.1:2", "host", 5.0))
    found = find_driver(files, "call", lost, 10)
    assert found is not None
    assert found.attempt == 1


def test_each_attempt_at_a_task_has_keys_of_its_own() -> None:
    keys = Keys.make(1)
    first, second = dict(keys.of_attempt(0)), dict(keys.of_attempt(1))
    assert list(first) == list(range(ROUNDS))
    assert not set(first) & set(second)
    assert len(set(keys.public)) == len(keys.pairs)
    with pytest.raises(EngineError, match=r"Spark ran this worker's task 14 times.* resume=True"):
        keys.of_attempt(13)


def test_lines_come_once_and_those_that_were_missed_are_counted(tmp_path: Path) -> None:
    files = ControlFiles(str(tmp_path))
    reader, posted = LogLineReader(files), LogLineWriter(files, "call", 0)
    assert reader.take() == []
    assert not reader.has_all
    lines = [LogLine(None, "worker 0 was lost"), LogLine(3, "loss 0.1", 1), LogLine(3, "loss is nan", is_warning=True)]
    posted.finish(SHOWN, [*lines, LogLine(3, "50 %", live=True)])
    assert reader.take() == lines
    assert reader.take() == []
    assert reader.has_all
    frames = "a frame\n" * (LONGEST // 8)  # so that the whole is longer than a line may be
    posted.finish(SHOWN, [LogLine(4, f"failed\n{frames}ValueError: nan")])
    assert reader.take()[-1] == LogLine(4, "ValueError: nan")
    posted.finish(SHOWN, [LogLine(0, str(number)) for number in range(MOST + 5)])
    told, *lines = reader.take()
    assert told.text.startswith("5 lines came too fast")
    assert len(lines) == MOST
    late = LogLineReader(files)
    assert len(late.take()) == MOST
    assert not reader.has_all
    assert not late.has_all


def test_errors_keep_their_class_and_notes() -> None:
    error = TrialsFailedError("3 trials failed identically")
    error.add_note("see there")
    back = from_record(to_record(error))
    assert (type(back), str(back), back.__notes__) == (TrialsFailedError, "3 trials failed identically", ["see there"])
    assert isinstance(from_record(to_record(StoreError("full"))), StoreError)
    traced = TrialsFailedError("3 trials failed identically", "Traceback: ...", "Fix the function.")
    back = from_record(to_record(traced))
    assert isinstance(back, TrialsFailedError)
    assert str(back) == str(traced)
    back.has_shown_traceback = True
    assert str(back) == "3 trials failed identically\nFix the function."
    foreign = from_record(to_record(ZeroDivisionError("division by zero")))
    assert (type(foreign), str(foreign)) == (EngineError, "ZeroDivisionError: division by zero")


def test_what_stands_in_a_note_is_an_ending_of_ours_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "stop.json").write_text('{"run": "now", "reason": "completed"}')
    assert ControlFiles(str(tmp_path)).stop_wanted("now") is None
