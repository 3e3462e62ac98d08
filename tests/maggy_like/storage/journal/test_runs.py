"""What a run does with its journal, wherever that is and whatever befell it."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import train_functions as fns
from gate import Gate
from msgspec import structs

from maggy_like import Float, LocalEngine, Reporter, Result, lagom, load_run
from maggy_like.driver import runner as job
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.write_ahead import WriteAhead
from maggy_like.errors import ConfigError, JournalError, StoreError
from maggy_like.storage.control_files import ControlFiles, DriverRecord
from maggy_like.storage.journal import backend_of, read_journal
from maggy_like.storage.journal.journal import LocalBackend
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated
from optimizers.core.trial import FailureKind, TrialState

pytestmark = pytest.mark.e2e


HEARTBEAT = 3.0


@pytest.fixture
def search(tmp_path: Path) -> Any:
    def run(train_fn: Any = fns.climb_on, **options: Any) -> Result:
        defaults: dict[str, Any] = {"engine": "inline", "optimizer": "random", "n_trials": 4, "max_budget": 3}
        common: dict[str, Any] = {"directory": tmp_path, "progress": False, "name": "run"}
        return lagom(train_fn, {"x": Float(0, 1)}, **{**defaults, **common, **options})

    return run


@pytest.fixture(params=["path", "file", "memory"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/elsewhere"
    directory = tmp_path / "elsewhere"
    return directory.as_uri() if request.param == "file" else str(directory)


def test_a_run_of_several_segments_is_resumed_without_a_loss(
    search: Any, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", 1000)
    first = search(directory=elsewhere)
    again = search(directory=elsewhere, n_trials=6, resume=True)
    assert [trial.config for trial in again.trials[:4]] == [trial.config for trial in first.trials]
    contents = read_journal(backend_of(str(again.directory)))
    assert not contents.damage
    assert sum(isinstance(event, TrialCreated) for event in contents.events) == 6


def test_a_run_at_any_path_or_url_is_overwritten_and_other_files_stay(search: Any, elsewhere: str) -> None:
    first = search(directory=elsewhere)
    fs, path = fsspec.core.url_to_fs(str(first.directory))
    fs.pipe_file(f"{path}/report.html", b"mine")
    of_the_run = [f"{path}/{name}" for name in ("tensorboard/events", "files/00000/model", "work/own/00000/model")]
    for file in of_the_run:
        fs.makedirs(file.rpartition("/")[0])
        fs.pipe_file(file, b"of the run")
    before = set(fs.find(path))
    with pytest.raises(ConfigError) as raised:
        search(directory=elsewhere)
    assert str(raised.value).endswith(
        "pass resume=True to continue it, overwrite=True to delete it and start over, or another name to keep both"
    )
    assert set(fs.find(path)) == before
    again = search(directory=elsewhere, overwrite=True, seed=7, n_trials=2)
    assert again.counts == {TrialState.COMPLETED: 2}
    assert again.best_config != first.best_config
    assert load_run(f"{elsewhere}/run").counts == again.counts
    assert fs.cat_file(f"{path}/report.html") == b"mine"
    assert not [file for file in of_the_run if fs.exists(file)]
    left = {name.removeprefix(f"{path}/checkpoints/").partition("/")[0] for name in fs.find(f"{path}/checkpoints")}
    assert len(left - {".run"}) == 2  # a directory for each trial
    more = search(directory=elsewhere, resume=True, seed=7)
    assert more.counts == {TrialState.COMPLETED: 4}


def test_overwriting_a_name_that_is_free_begins_a_run(search: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert search(overwrite=True).counts == {TrialState.COMPLETED: 4}
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_running_run_is_not_overwritten(search: Any, elsewhere: str) -> None:
    def train(x: float) -> float:
        with pytest.raises(JournalError, match="is in use by"):
            search(directory=elsewhere, overwrite=True)
        return x

    assert search(train, directory=elsewhere, direction="max").counts == {TrialState.COMPLETED: 4}
    assert load_run(f"{elsewhere}/run").counts == {TrialState.COMPLETED: 4}


def test_a_run_whose_driver_in_the_cluster_has_not_ended_is_not_overwritten(search: Any, elsewhere: str) -> None:
    """No driver holds it between two attempts of Spark's at the driver's task."""
    first = search(directory=elsewhere)
    files, record = ControlFiles(f"{elsewhere}/run"), DriverRecord("a call", 0, "", "host-7", 0.0)
    files.publish(record)
    with pytest.raises(JournalError, match="has a driver in the cluster, on host-7, that has not recorded its end"):
        search(directory=elsewhere, overwrite=True)
    assert load_run(f"{elsewhere}/run").counts == first.counts
    files.publish(structs.replace(record, is_over=True))
    assert search(directory=elsewhere, overwrite=True, n_trials=2).counts == {TrialState.COMPLETED: 2}
    assert files.driver() is None


@pytest.mark.parametrize("text", ['{"epoch": 1}\n', "hello\n", "\x00"])
def test_a_directory_that_is_no_run_is_not_overwritten(search: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    files = {"journal.jsonl": text, "journal.lock": "theirs", "checkpoints/model.pt": "theirs"}
    for name, content in files.items():
        (tmp_path / "run" / name).write_text(content)
    with pytest.raises(JournalError, match=r"overwrite=True deletes runs only, .*; pass another name, or remove"):
        search(overwrite=True)
    found = {str(path.relative_to(tmp_path / "run")): path.read_text() for path in tmp_path.rglob("*.*")}
    assert found == files


def test_states_outside_of_the_run_s_directory_are_not_overwritten(search: Any, tmp_path: Path) -> None:
    first = search(store=tmp_path / "states")
    with pytest.raises(ConfigError, match=r"overwrite=True deletes none outside of the run's directory; pass another"):
        search(store=tmp_path / "states", overwrite=True)
    assert load_run(first.directory).counts == first.counts


@pytest.mark.parametrize("first", ["states", None])
def test_a_run_is_resumed_with_the_store_that_has_its_states(search: Any, tmp_path: Path, first: str | None) -> None:
    store, other = (None if name is None else tmp_path / name for name in (first, "other" if first is None else None))
    before = search(store=store)
    journal = (tmp_path / "run" / "journal.jsonl").read_bytes()
    remedy = "without store=" if first is None else f"with store='file://{tmp_path}/states'"
    with pytest.raises(ConfigError, match=rf"the run 'run' has its checkpoints in .*, not in .*; resume it {remedy}"):
        search(store=other, resume=True, n_trials=6)
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == journal
    again = search(store=store, resume=True, n_trials=6)
    assert again.load_best() is not None
    assert again.best_value >= before.best_value


def test_a_run_whose_store_was_moved_is_resumed_there(search: Any, tmp_path: Path) -> None:
    search(store=tmp_path / "states")
    (tmp_path / "states").rename(tmp_path / "elsewhere")
    assert search(store=tmp_path / "elsewhere", resume=True, n_trials=6).load_best() is not None


def test_wrong_use_of_overwrite_is_named(search: Any) -> None:
    with pytest.raises(ConfigError, match="overwrite=True needs the name of the run; pass name="):
        search(overwrite=True, name=None)
    with pytest.raises(ConfigError, match="so both cannot be True; pass one"):
        search(overwrite=True, resume=True)
    with pytest.raises(ConfigError, match="overwrite must be True or False, got 'yes'"):
        search(overwrite="yes")


def test_what_is_no_place_for_a_run(search: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"directory='nowhere://x' cannot be opened: .*use a path, or a protocol"):
        search(directory="nowhere://x")
    with pytest.raises(ConfigError, match=r"store='nowhere://x' cannot be opened: .*use a path, or a protocol"):
        search(store="nowhere://x")
    with pytest.raises(ConfigError, match="store must be the path or URL of a directory, or a Store, got 3"):
        search(store=3)
    with pytest.raises(ConfigError, match=r"warm_start: 'nowhere://x' cannot be opened"):
        search(warm_start=["nowhere://x"])
    with pytest.raises(JournalError, match=r"no run named 'run' in .* to resume; leave resume out to start it"):
        search(resume=True)


@pytest.fixture
def apart(elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A directory that processes of workers may not see, and a store that they do."""
    monkeypatch.setattr("maggy_like.driver.runner.is_in_memory", lambda _: False)
    return {"directory": elsewhere, "store": tmp_path / "states"}


def test_a_damaged_run_goes_on_and_tells_where_and_what(
    search: Any,
    elsewhere: str,
    apart: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = search(**apart)
    lost = {line: flip(f"{elsewhere}/run", line) for line in range(2, 40) if says(f"{elsewhere}/run", line, "created")}
    assert len(lost) == 4
    seen: list[Event] = []
    with caplog.at_level(logging.WARNING, logger="maggy_like"):
        options: dict[str, Any] = {"engine": "local", "workers": 1, "progress": "plain", "callbacks": [seen.append]}
        again = search(**apart, resume=True, n_trials=5, **options)
    assert [repr(trial) for trial in again.trials[:4]] == [repr(trial) for trial in first.trials]
    assert [event.trial for event in seen if isinstance(event, AttemptStarted)] == [4]
    name = "journal-000001.jsonl" if elsewhere.startswith("memory") else "journal.jsonl"
    for line in lost:
        assert any(f"/run/{name}, line {line} is damaged" in text for text in caplog.messages)
    assert sum("its creation was inferred" in text for text in caplog.messages) == 4
    out = capsys.readouterr().out
    assert f"/run/{name}, line {min(lost)} is damaged" in out
    assert "... and 5 more" in out

    caplog.clear()
    third = search(**apart, resume=True, n_trials=6)
    assert [repr(trial) for trial in third.trials[:5]] == [repr(trial) for trial in again.trials]
    assert not caplog.messages


def says(url: str, line: int, kind: str) -> bool:
    lines = next(backend_of(url).read()).data.split(b"\n")
    return line <= len(lines) and lines[line - 1].startswith(f'{{"type":"{kind}"'.encode())


def flip(url: str, line: int) -> None:
    """Change one byte in the midst of a line."""
    lines = next(backend_of(url).read()).data.split(b"\n")
    lines[line - 1] = lines[line - 1][:20] + b"#" + lines[line - 1][21:]
    fs, path = fsspec.core.url_to_fs(url)
    (file,) = (found for found in fs.ls(path, detail=False) if found.endswith("l"))
    fs.pipe_file(file, b"\n".join(lines))


def test_a_damaged_run_serves_as_warm_start(search: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = search()
    flip(str(tmp_path / "run"), 2)
    options: dict[str, Any] = {"engine": "local", "workers": 1, "progress": "plain"}
    warm = search(name="new", warm_start=[first], n_trials=1, **options)
    assert warm.best_config == first.best_config
    out = " ".join(capsys.readouterr().out.split())
    assert "4 of 4 trials of 'run' can be used, though" in out
    assert "journal.jsonl, line 2 is damaged" in out


def test_a_second_driver_on_a_run_is_refused(search: Any, elsewhere: str) -> None:
    refused: list[JournalError] = []

    def attempt(event: Event) -> None:
        if isinstance(event, TrialCreated):
            with pytest.raises(JournalError, match=r"is in use by .*, call stop\(\) of its handle") as caught:
                search(directory=elsewhere, resume=True)
            refused.append(caught.value)

    assert search(directory=elsewhere, n_trials=1, callbacks=[attempt]).counts == {TrialState.COMPLETED: 1}
    assert len(refused) == 1
    assert search(directory=elsewhere, n_trials=2, resume=True).counts == {TrialState.COMPLETED: 2}


def test_a_round_of_the_driver_costs_one_append(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow store takes its time, what the workers say piles up, and is then written in one piece."""
    sizes: list[int] = []
    append = LocalBackend.append

    def slow_append(backend: LocalBackend, data: bytes) -> None:
        threading.Event().wait(0.05)
        sizes.append(data.count(b"\n"))
        append(backend, data)

    monkeypatch.setattr(LocalBackend, "append", slow_append)
    result = search(fns.climb, workers=4, n_trials=40, max_budget=9, engine=LocalEngine(isolation="worker"))
    assert result.counts == {TrialState.COMPLETED: 40}
    assert (
        sum(sizes) == len(read_journal(backend_of(str(result.directory))).events) + 3
    )  # the header, its begin and its end
    assert max(sizes) > 4  # more than one message brings about


def test_workers_that_a_slow_store_kept_from_being_heard_are_not_lost(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they said meanwhile lies there unread."""
    gate, renewals = Gate(tmp_path / "gate"), itertools.count()

    def renew(_: LocalBackend) -> None:
        match next(renewals):
            case 8:
                threading.Event().wait(HEARTBEAT + 1.0)
            case 12:
                gate.open()

    monkeypatch.setattr(LocalBackend, "renew", renew)
    monkeypatch.setattr(job, "StateMachine", partial(StateMachine, heartbeat_timeout=HEARTBEAT))
    result = lagom(
        fns.wait_at_gate, {"gate": gate.path, "x": Float(0, 1)}, optimizer="random", n_trials=2, workers=2,
        engine="local", directory=tmp_path, progress=False,
    )  # fmt: skip
    assert next(renewals) > 12
    assert [(trial.state, trial.attempt) for trial in result.trials] == [(TrialState.COMPLETED, 1)] * 2


def test_a_store_that_is_gone_ends_the_search(search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", refuse)

    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError("the key was withdrawn")

    url, store = f"memory://{uuid.uuid4().hex}", tmp_path / "states"
    monkeypatch.setattr("maggy_like.driver.runner.is_in_memory", lambda _: False)
    monkeypatch.setattr("maggy_like.driver.loop.WriteAhead", partial(WriteAhead, patience=0.5))
    told = r"in memory://.*/run cannot be written: the key was withdrawn, for \d+ s now; free space"
    with pytest.raises(StoreError, match=told):
        search(fns.climb, engine="local", workers=2, directory=url, store=store, n_trials=10_000,
               callbacks=[leave])  # fmt: skip
    monkeypatch.undo()
    before = read_journal(backend_of(f"{url}/run"))
    done = {event.trial for event in before.events if isinstance(event, AttemptEnded)}
    assert done
    seen: list[Event] = []
    again = search(fns.climb, directory=url, store=store, resume=True, n_trials=len(done) + 5, callbacks=[seen.append])
    assert again.counts[TrialState.COMPLETED] >= len(done)
    assert not done & {event.trial for event in seen if isinstance(event, AttemptStarted)}


def test_the_files_of_a_run_are_the_user_s_alone(search: Any, tmp_path: Path) -> None:
    def train(x: float, reporter: Reporter) -> None:
        print("one that prints nothing has no log file")
        fns.climb_on(x, reporter)

    result = search(train, engine="local", workers=1, n_trials=1)
    found = {path.relative_to(result.directory): path.stat().st_mode & 0o777 for path in result.directory.rglob("*")}
    found[Path()] = result.directory.stat().st_mode & 0o777
    directories = {path for path in found if (result.directory / path).is_dir()}
    assert {str(path) for path in directories} == {".", "logs", "workers", "checkpoints", "checkpoints/00000"}
    assert {path.name for path in found} >= {"journal.jsonl", "journal.lock", "00000.log", "0.log", ".run"}
    assert any(path.suffix == ".pkl" for path in found)
    assert {oct(found[path]) for path in directories} == {"0o700"}
    assert {oct(mode) for path, mode in found.items() if path not in directories} == {"0o600"}


# -- a journal that the version before wrote: ``before`` is read and resumed, and is never written anew


BEFORE = Path(__file__).parent / "before"


def test_a_run_of_the_version_before_is_read_and_resumed(tmp_path: Path) -> None:
    shutil.copytree(BEFORE, tmp_path / "before")
    result = load_run(tmp_path / "before")
    assert result.best_value == 0.125
    assert [(trial.attempt, trial.stage_losses) for trial in result.trials] == [(2, 1), (1, 1)]
    assert result.trials[1].failure.kind is FailureKind.STAGE_LOST

    def train(x: float, reporter: Reporter) -> None:
        for step in (1, 2, 3):
            reporter.report(loss=0.5 / step, step=step)

    space = {"x": Float(0.0, 1.0)}
    options = {"optimizer": "random", "metric": "loss", "direction": "min", "max_budget": 3, "seed": 1}
    found = lagom(
        train,
        space,
        n_trials=2,
        directory=tmp_path,
        name="before",
        engine="inline",
        resume=True,
        progress=False,
        **options,
    )
    assert [(trial.state, trial.attempt) for trial in found.trials] == [("completed", 2), ("completed", 2)]


# -- a journal that cannot be written any more, refused by the kernel itself ------------------------


FULL_DISK = """
import os, resource, sys, time
from functools import partial
from pathlib import Path
from maggy_like import Float, lagom
from maggy_like.driver import loop as driver
from maggy_like.driver.write_ahead import WriteAhead
from maggy_like.storage.journal.journal import LocalBackend

directory, resumes = Path(sys.argv[1]), len(sys.argv) > 2
driver.WriteAhead = partial(WriteAhead, patience={patience})

def train(x, reporter):
    (directory / f"ran-{{x}}").touch()
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)

append, tries = LocalBackend.append, 0

def append_while_there_is_room(backend, data):  # room for this process; the workers have their own limit
    global tries
    tries += tries > 0
    if tries == {serves_at}:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    append(backend, data)
    if b'"type":"created"' in data and not resumes and not tries:
        tries = 1  # between two appends: nothing is written meanwhile
        limit = (directory / "run" / "journal.jsonl").stat().st_size + {room}
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

LocalBackend.append = append_while_there_is_room

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=8, workers=2, engine="local", max_budget=3,
               name="run", directory=directory, progress="plain" if {serves_at} else False, resume=resumes)
print("END", result.ending, *(t.state for t in result.trials), *(len(t.curve) for t in result.trials),
      *(t.attempt for t in result.trials))
"""


RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_disk_that_is_full_for_a_while_costs_nothing_but_that_while(run_script: RunScript, tmp_path: Path) -> None:
    done = run_script(FULL_DISK.format(room=2, patience=600, serves_at=7), tmp_path)
    end = " ".join(["END", *["completed"] * 9, *["3"] * 8, *["1"] * 8])
    assert end in done.stdout.splitlines(), done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    told = rf"the journal in {tmp_path}/run cannot be written: .*File too large; the search waits and tries again"
    assert len(re.findall(told, said)) == 1, said
    assert said.count("the journal can be written again after") == 1
    contents = read_journal(backend_of(str(tmp_path / "run")))
    assert not contents.damage
    assert sum(isinstance(event, TrialCreated) for event in contents.events) == 8


@pytest.mark.parametrize("room", [2, 777])
def test_a_disk_that_stays_full_ends_the_search_and_loses_nothing(
    run_script: RunScript, tmp_path: Path, room: int
) -> None:
    script = FULL_DISK.format(room=room, patience=0.5, serves_at=0)
    failed = run_script(script, tmp_path)
    assert failed.returncode == 1
    assert "use resume=True to continue" in failed.stderr
    told = (
        rf"StoreError: the journal in {tmp_path}/run cannot be written: .*File too large, for \d+ s now; free space .*"
    )
    assert re.search(told, failed.stderr), failed.stderr

    before = read_journal(backend_of(str(tmp_path / "run")))
    assert not before.damage  # no half of a record is left
    started = {event.config["x"] for event in before.events if isinstance(event, AttemptStarted)}
    ran = {float(name.removeprefix("ran-")) for name in os.listdir(tmp_path) if name.startswith("ran-")}
    assert ran <= started  # nothing was sent that depended on what could not be written

    again = run_script(script, tmp_path, "resume")
    assert " ".join(["END", *["completed"] * 9, *["3"] * 8]) in again.stdout, again.stderr
    after = read_journal(backend_of(str(tmp_path / "run")))
    assert after.events[: len(before.events)] == before.events
    assert not after.damage
    assert sum(isinstance(event, TrialCreated) for event in after.events) == 8


def test_ctrl_c_ends_the_wait(run_script: RunScript, tmp_path: Path) -> None:
    interrupts = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would ignore it
refused = WriteAhead._refused
def refuse(self, *args):
    refused(self, *args)
    if self._pause > 0.3:
        os.kill(os.getpid(), signal.SIGINT)
WriteAhead._refused = refuse
"""
    script = FULL_DISK.format(room=2, patience=600, serves_at=0).replace(
        "append, tries =", interrupts + "append, tries ="
    )
    failed = run_script(script, tmp_path)
    assert re.search(r"StoreError: the journal in .* cannot be written: .* for \d s now", failed.stderr), failed.stderr
    again = run_script(script, tmp_path, "resume")
    assert " ".join(["END", *["completed"] * 9, *["3"] * 8]) in again.stdout, again.stderr
