"""Runs listed and compared."""

from __future__ import annotations

import os
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_pages import write_run

from maggy_like import (
    AblationStudy,
    Confirmation,
    FailurePolicy,
    Float,
    ablate,
    compare_runs,
    lagom,
    list_runs,
    load_run,
    run,
)
from maggy_like.errors import ConfigError, JournalError, TrainingError, TrialsFailedError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import Journal, RunStatus, backend_of, read_journal
from maggy_like.storage.journal.journal import LocalBackend
from maggy_like.storage.journal.object_store import ObjectStoreBackend
from maggy_like.storage.journal.records import Record, encode
from maggy_like.storage.local_files import LocalFiles
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.slow


def fails_below_one(x: int) -> float:
    if x < 1:
        raise ValueError("too small")
    return float(x)


def reports(x: int, reporter: Any) -> None:
    reporter.report(score=x, step=1)


def test_runs_are_listed_the_newest_first_with_those_that_cannot_be_read(tmp_path: Path) -> None:
    write_run(tmp_path, "old", 12, 2)
    new = lagom(
        lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=2, engine="inline", metric="x", direction="max",
        directory=tmp_path, name="new", progress=False,
    )  # fmt: skip
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "journal.jsonl").write_text("nothing\n")
    (tmp_path / "no run").mkdir()
    runs = list_runs(tmp_path)
    assert [run.name for run in runs] == ["new", "old", "broken"]
    assert (runs[0].best_value, runs[0].trials, runs[0].ending) == (new.best_value, 2, "completed")
    assert load_run(runs[1].directory).name == "old"
    lines = str(runs).splitlines()
    assert len(lines) == 4
    assert "max accuracy" in lines[2]
    assert "cannot be read" in lines[3]
    assert list(runs.to_pandas()["name"]) == ["new", "old", "broken"]
    assert runs._repr_html_().count("<tr>") == 4


def test_a_long_metric_makes_no_table_wide(tmp_path: Path) -> None:
    name = "m" * 300
    lagom(lambda x: {name: x}, {"x": Float(0, 1)}, optimizer="random", n_trials=1, engine="inline", metric=name,
          direction="max", directory=tmp_path, name="long", progress=False)  # fmt: skip
    assert max(map(len, str(list_runs(tmp_path)).splitlines())) < 160


def test_runs_in_a_store_are_read_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = f"memory://{uuid.uuid4().hex}"
    for name in ("one", "two"):
        lagom(lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=1, engine="inline", directory=directory,
              name=name, progress=False)  # fmt: skip
    both = threading.Barrier(2, timeout=60)  # broken where one waits for the other
    ends = ObjectStoreBackend.ends
    monkeypatch.setattr(ObjectStoreBackend, "ends", lambda it: ends(it) if both.wait() >= 0 else None)
    assert [run.problem for run in list_runs(directory)] == ["", ""]
    assert {run.name for run in list_runs(directory)} == {"one", "two"}


def test_a_run_of_another_user_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "mine", 3, 1)
    (tmp_path / "theirs").mkdir()

    ends, stat = LocalBackend.ends, os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and "theirs/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)

    def no_ends(self: LocalBackend) -> tuple[bytes, bytes]:
        refuse(f"{self.name}/journal.jsonl")
        return ends(self)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(LocalBackend, "ends", no_ends)
    assert [(run.name, bool(run.problem)) for run in list_runs(tmp_path)] == [("mine", False), ("theirs", True)]
    with pytest.raises(JournalError, match=r"theirs cannot be read: .*Permission denied.*; fix the access"):
        load_run(tmp_path / "theirs")
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 1, "engine": "inline", "progress": False}
    for directory, name in ((tmp_path, "theirs"), (tmp_path / "theirs", "mine")):
        with pytest.raises(JournalError, match=r"cannot be read: .*Permission denied.*; fix the access"):
            lagom(lambda x: x, {"x": Float(0, 1)}, direction="max", directory=directory, name=name, **options)


def test_a_directory_that_cannot_be_read_is_not_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFiles, "ls", refuse)
    with pytest.raises(JournalError, match=r"the directory '.*' cannot be read: .*Permission denied; fix the access"):
        list_runs(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no run in .*; use the directory of one"):
        load_run(tmp_path / "run")


def test_runs_say_what_failed_and_what_they_trained(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": "inline", "directory": tmp_path, "progress": False}
    failures = FailurePolicy(max_attempts=1, catch=(ValueError,))
    search: dict[str, Any] = {"optimizer": "grid", "metric": "score", "direction": "max", **options}
    lagom(fails_below_one, {"x": [0, 1, 2]}, name="search", train_best=True, failures=failures, **search)
    with pytest.raises(TrialsFailedError):
        lagom(fails_below_one, {"x": [-1, 0]}, name="nothing", failures=FailurePolicy(max_attempts=1), **search)
    run(reports, {"x": 5}, name="training", **options)
    with pytest.raises(TrainingError):
        run(fails_below_one, {"x": 0}, name="bad-training", failures=failures, **options)
    cells = {summary.name: summary.cells for summary in list_runs(tmp_path)}
    assert cells["search"][2:] == ["completed", "0:00", "3 (1 failed), training", "max score", "2", "x=2"]
    assert cells["nothing"][2:5] == ["error", "0:00", "2 (2 failed)"]
    assert cells["training"][4:] == ["training", "max score", "5", "x=5"]
    assert cells["bad-training"][2:] == ["training failed", "0:00", "training", "-", "-", "x=0"]
    assert str(load_run(tmp_path / "bad-training")).startswith("training failed after 0:00\n")
    assert "exception in trial 0: ValueError: too small\n" in str(load_run(tmp_path / "search"))


def fails_with_another_seed(x: int, seed: int = 0) -> float:
    if seed:
        raise ValueError(seed)
    return float(x)


def test_repeats_of_a_confirmation_are_not_its_training(tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": "grid", "direction": "max", "engine": "inline", "progress": False}
    confirm = Confirmation(top=2, repeats=2)
    lagom(fails_with_another_seed, {"x": [0, 1, 2]}, name="run", confirm=confirm, directory=tmp_path, **options)
    (summary,) = list_runs(tmp_path)
    assert (summary.ending, summary.training, summary.trials) == ("completed", None, 3)


def diverges(x: int, reporter: Any) -> None:
    reporter.report(score=float("inf"), step=x)


def search(directory: str, name: str, train_fn: Any, **options: Any) -> None:
    given: dict[str, Any] = {"optimizer": "random", "n_trials": 3, "metric": "score", "direction": "max", **options}
    lagom(
        train_fn, {"x": Float(0, 1)}, name=name, directory=directory, engine="inline", progress=False, seed=1, **given
    )


def two_values(x: float, reporter: Any) -> None:
    reporter.report(score=x, seconds=-x, step=1)


def without_totals(directory: str, name: str) -> None:
    """Rewrite a journal as earlier versions wrote it."""
    contents = read_journal(backend_of(f"{directory}/{name}"))
    assert contents.begun is not None
    assert contents.ended is not None
    ended = msgspec.structs.replace(contents.ended, totals=None)
    backend = backend_of(f"{directory}/{name}")
    backend.hold()
    backend.clear()
    backend.append(encode([contents.header, contents.begun, *contents.events, ended], 1))
    backend.release()


@pytest.mark.parametrize("kind", ["path", "memory"])
def test_of_a_run_that_has_ended_only_both_ends_of_the_journal_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path) if kind == "path" else f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr("maggy_like.storage.journal.journal.END", 8192)
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", 1000)
    failures = FailurePolicy(max_attempts=1, catch=(ValueError,))
    search(directory, "search", reports, train_best=True, n_trials=60)
    search(directory, "failing", fails_below_one, n_trials=2, failures=failures)
    search(directory, "two", two_values, metric=["score", "seconds"], direction=["max", "min"])
    run(diverges, {"x": 1}, name="training", engine="inline", directory=directory, progress=False)
    search(directory, "resumed", reports)
    search(directory, "resumed", reports, n_trials=4, resume=True)
    names = ["failing", "resumed", "search", "training", "two"]
    with monkeypatch.context() as patch:
        for backend in (LocalBackend, ObjectStoreBackend):
            patch.setattr(backend, "read", lambda _: pytest.fail("the whole journal was read"))
            patch.setattr(backend, "is_held", lambda _: pytest.fail("the lock was read"))
        fast = {summary.name: summary for summary in list_runs(directory)}
    assert sorted(fast) == names
    assert [fast[name].trials for name in names] == [2, 4, 60, 0, 3]
    for name in names:
        without_totals(directory, name)
    whole = {summary.name: summary for summary in list_runs(directory)}
    for name in ("search", "failing", "two", "training"):
        before, after = (asdict(found[name]) | {"seconds": 0} for found in (fast, whole))
        assert repr(before) == repr(after)
        assert fast[name].seconds == pytest.approx(whole[name].seconds, abs=0.5)  # of another clock


def test_an_end_that_is_torn_or_before_a_resume_is_not_taken_for_the_end(tmp_path: Path) -> None:
    search(str(tmp_path), "torn", reports)
    search(str(tmp_path), "resumed", reports)
    journal = tmp_path / "torn" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    resumed = Journal(backend_of(tmp_path / "resumed"))
    resumed.read()
    resumed.note(RunStatus(Ending.RUNNING, time.time()))
    endings = {summary.name: summary.ending for summary in list_runs(tmp_path)}
    assert endings == {"torn": Ending.KILLED, "resumed": Ending.RUNNING}
    resumed.close()


BEGUN, RESUMED = RunStatus(Ending.RUNNING, 1000.0), RunStatus(Ending.RUNNING, 2000.0)
TRIAL = TrialCreated(0, {"x": 0.5}), AttemptStarted(0, 1, 0, 9, 1005.0)
LOST = AttemptEnded(0, 1, TrialState.FAILED, 1030.0)  # a resume records it, with the time of the last word before


@pytest.mark.parametrize(
    ("records", "shown"),
    [
        ([BEGUN, *TRIAL, LOST, RunStatus(Ending.STOPPED, 1060.0, 60.0)], "1:00"),
        ([BEGUN, *TRIAL], "0:05 or more"),
        ([BEGUN], "0:00 or more"),
        ([BEGUN, RunStatus(Ending.STOPPED, 1060.0, 60.0), RESUMED, RunStatus(Ending.COMPLETED, 2030.0, 30.0)], "1:30"),
        ([BEGUN, *TRIAL, RESUMED, LOST, RunStatus(Ending.COMPLETED, 2030.0, 30.0)], "1:00 or more"),
        ([BEGUN, RunStatus(Ending.STOPPED, 1060.0, 60.0), RESUMED], "1:00 or more"),
    ],
    ids=["ended", "killed", "killed at once", "resumed", "killed and resumed", "resumed and killed"],
)
def test_the_time_of_a_run_is_that_of_all_its_drivers_as_far_as_it_is_known(
    tmp_path: Path, records: list[Record], shown: str
) -> None:
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 1, "engine": "inline", "progress": False}
    lagom(lambda x: x, {"x": Float(0, 1)}, name="run", directory=tmp_path, **options)
    journal = tmp_path / "run" / "journal.jsonl"
    header = read_journal(backend_of(tmp_path / "run")).header
    journal.write_bytes(encode([header, *records], 1))
    (summary,) = list_runs(tmp_path)
    assert summary.cells[3] == shown
    assert ("or more" in shown) is summary.is_longer
    result = load_run(tmp_path / "run")
    assert f" after {shown}: " in str(result).splitlines()[0]
    assert result.is_longer is summary.is_longer
    result.report(tmp_path / "report.html")
    assert f" after {shown}: max " in (tmp_path / "report.html").read_text()


def test_a_run_that_goes_on_has_its_time_until_now(tmp_path: Path) -> None:
    began: list[float] = []
    seen: list[bool] = []

    def look(event: Event) -> None:
        if isinstance(event, TrialCreated):
            began.append(time.time())
        elif isinstance(event, AttemptEnded):
            known = time.time() - began[0]
            (summary,) = list_runs(tmp_path)
            seen.append(summary.ending == "running" and summary.seconds >= known and not summary.is_longer)

    lagom(
        lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=1, engine="inline", directory=tmp_path,
        progress=False, callbacks=[look],
    )  # fmt: skip
    assert seen == [True]


def test_a_directory_without_runs_is_said_to_be_one(tmp_path: Path) -> None:
    assert repr(list_runs(tmp_path)) == f"no runs in {str(tmp_path)!r}"
    with pytest.raises(ConfigError, match="directory must be the directory of all runs"):
        list_runs(3)


def noisy(x: int, seed: int) -> float:
    return x + seed % 2


def test_runs_are_compared_by_their_best_over_the_time(tmp_path: Path) -> None:
    small, large = write_run(tmp_path, "small", 10, 2), write_run(tmp_path, "large", 40, 4)
    comparison = compare_runs([small, load_run(large)])
    for name, best in comparison.best_over_time().items():
        values = [value for _, _, value in best]
        assert values == sorted(values)
        assert values[-1] == load_run(tmp_path / name).best_value
    table = comparison.to_pandas().set_index("run")
    assert list(table["trials"]) == [10, 40]
    assert (table["best_after"] <= table["seconds"]).all()
    assert [line.split()[0] for line in str(comparison).splitlines()] == ["run", "small", "large"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    study = AblationStudy(config={"x": 1}).config(x=0)
    answer = ablate(noisy, study, direction="max", repeats=2, engine="inline", directory=tmp_path, progress=False)
    with pytest.raises(ConfigError, match=r"is an ablation, so it has no best trial; compare the answers of ablate"):
        compare_runs([answer.result])
    with pytest.raises(ConfigError, match="runs must have at least one run, got none"):
        compare_runs([])
    with pytest.raises(ConfigError, match=r"runs must be a list of runs, got 'one'"):
        compare_runs("one")
