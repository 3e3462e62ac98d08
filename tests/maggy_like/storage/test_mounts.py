"""A run in a directory that creates whole files, and cannot append, rename or lock, as mounts of object stores."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns
from limited_mount import IS_POSSIBLE, limited_mount

from maggy_like import Float, Result, Store, lagom, list_runs, load_run
from maggy_like.command_line import main
from maggy_like.errors import JournalError
from maggy_like.storage.journal import Journal, Mark, backend_of, read_journal
from optimizers.core.events import CheckpointSaved
from optimizers.core.trial import TrialState


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not IS_POSSIBLE:
        pytest.skip("needs /dev/fuse, libfuse and mfusepy")
    with limited_mount(tmp_path_factory.mktemp("fuse")) as mount:
        yield mount


def search(directory: Path, **options: Any) -> Result:
    settings: dict[str, Any] = {"optimizer": "random", "n_trials": 4, "max_budget": 3, "workers": 2, "engine": "local"}
    common: dict[str, Any] = {"directory": directory, "name": "run", "progress": "plain"}
    return lagom(fns.climb_on, {"x": Float(0, 1)}, **common | settings | options)


@pytest.mark.e2e
def test_a_run_is_kept_read_and_resumed_there(mount: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = mount / "runs"
    first = search(runs, store=Store(mount / "states"))
    assert "cannot append to, rename or lock files" in capsys.readouterr().out
    assert first.counts == {TrialState.COMPLETED: 4}
    again = load_run(runs / "run")
    assert again == first
    assert again.directory == f"mount://{runs}/run"
    assert again.load_best() == first.load_best()
    assert [run.name for run in list_runs(runs)] == ["run"]
    assert main(["list", str(runs)]) == 0
    assert "completed" in capsys.readouterr().out
    more = search(runs, n_trials=6, resume=True, store=Store(mount / "states"))
    assert more.counts == {TrialState.COMPLETED: 6}
    assert load_run(runs / "run") == more
    names = {path.name for path in (runs / "run").iterdir()}
    assert not {name for name in names if name.startswith("lease") or name.startswith("journal.")}


def test_a_driver_is_told_who_has_the_run(mount: Path) -> None:
    directory = f"mount://{mount}/held"
    journal = Journal(backend_of(directory))
    with pytest.raises(JournalError, match=f"is in use by process {os.getpid()} on "):
        Journal(backend_of(directory))
    journal.close()
    Journal(backend_of(directory)).close()


def test_what_a_driver_did_not_finish_writing_is_not_read(mount: Path) -> None:
    found = search(mount / "torn", engine="inline", workers=1)
    directory = mount / "torn" / "run"
    backend = backend_of(str(directory))
    before, mark = backend.added(Mark()) or (b"", Mark())
    [file] = directory.glob("journal-*.jsonl")
    (directory / "journal-000001-2.1-100000.jsonl").write_bytes(file.read_bytes()[:100])
    assert len(read_journal(backend).events) == before.count(b"\n") - 3  # a header, a beginning and an end
    assert load_run(directory) == found
    search(mount / "torn", engine="inline", workers=1, n_trials=5, resume=True)
    assert backend.added(mark) is None  # another driver has written since
    assert len(load_run(directory).trials) == 5


def test_a_reader_follows_a_journal_whose_file_has_another_name_after_each_append(mount: Path) -> None:
    writer, reader = backend_of(f"mount://{mount}/followed"), backend_of(f"mount://{mount}/followed")
    writer.hold()
    read, mark = b"", Mark()
    for number in range(5):
        writer.append(b"line %d\n" % number)
        if number != 2:
            added = reader.added(mark)
            assert added is not None
            read, mark = read + added[0], added[1]
    assert read == b"".join(b"line %d\n" % number for number in range(5))
    assert len(list((mount / "followed").glob("journal-*"))) == 1
    writer.release()


def test_a_mount_that_creates_a_file_twice_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("maggy_like.storage.run_paths.creates_once", lambda _: False)
    search(f"mount://{tmp_path}", engine="inline", workers=1)  # type: ignore[arg-type]
    assert "two drivers that begin this run within a second may not notice each other" in capsys.readouterr().out


KILLED = """
import sys, threading
from maggy_like import Float, lagom

def train(x, reporter):
    start = reporter.restore() or 0
    for step in range(start + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
        if len(sys.argv) == 2 and reporter.trial == 1 and step == 2:
            print("at step 2", flush=True)
            threading.Event().wait()
    return {"score": x, "start": start}

result = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=3, engine="inline", max_budget=3, name="run",
               directory=sys.argv[1], resume=len(sys.argv) > 2, progress="plain")
print("starts", *(trial.metrics["start"] for trial in result.trials))
"""


def saved(run: str) -> list[CheckpointSaved]:
    """The states that the journal knows."""
    return [event for event in read_journal(backend_of(run)).events if isinstance(event, CheckpointSaved)]


@pytest.mark.e2e
def test_a_killed_driver_s_run_continues_from_its_checkpoints(mount: Path, run_script: Any, tmp_path: Path) -> None:
    script, directory = tmp_path / "first.py", str(mount / "killed")
    script.write_text(KILLED)
    with subprocess.Popen([sys.executable, str(script), directory], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("at step 2" in line for line in process.stdout)
        while not any(event.trial == 1 for event in saved(f"{directory}/run")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert load_run(f"{directory}/run").ending == "killed"
    again = run_script(KILLED, directory, "resume")
    assert re.search("starts 0 [12] 0", again.stdout), again.stdout + again.stderr
