"""Earlier runs, and such as go on, opened from their files."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns
from background import Background

from maggy_like import Float, Reporter, Result, compare_runs, lagom, load_run
from maggy_like.errors import ConfigError, JournalError, OptimizerError, UserError
from maggy_like.protocol.state_names import log_name
from maggy_like.results.data import read_log
from maggy_like.storage.file_systems import local_url
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.base import History
from optimizers.core.events import AttemptStarted, Event
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.space import Config


@pytest.fixture
def search(tmp_path: Path) -> Any:
    def run(train_fn: Any = fns.climb_on, **options: Any) -> Result:
        defaults: dict[str, Any] = {"engine": "inline", "optimizer": "random", "n_trials": 4, "max_budget": 3}
        common: dict[str, Any] = {"directory": tmp_path / "runs", "progress": False, "name": "first"}
        return lagom(train_fn, {"x": Float(0, 1)}, **{**common, **defaults, **options})

    return run


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.rglob("*") if file.is_file()}


@pytest.mark.parametrize("options", [
    {}, {"value": "last", "direction": "min"}, {"metric": "score"}, {"optimizer": ASHA(mode="promotion")},
    {"metric": ["score", "start"], "direction": ["max", "min"]}, {"train_best": True},
    {"optimizer": PBT(population=4, interval=1), "n_trials": 6},
])  # fmt: skip
def test_it_is_the_result_that_lagom_returned(search: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    result, before = search(**options), contents(tmp_path)
    again = load_run(tmp_path / "runs" / "first")
    assert contents(tmp_path) == before
    assert again == result
    assert repr(again) == repr(result)
    assert again.to_pandas().equals(result.to_pandas())
    assert again.curves().equals(result.curves())
    if result.training is not None:
        assert again.training is not None
        assert again.training.load() == result.training.load()
    if result.best_config is not None:
        with pytest.raises(UserError, match=r"do not have the training function; use maggy_like.run\(train_fn"):
            again.train()


def test_all_that_a_result_offers(search: Any, tmp_path: Path) -> None:
    result = search(n_trials=24, max_budget=1)
    again = load_run(str(tmp_path / "runs" / "first") + "/")
    assert again.importance() == result.importance()
    assert again.to_optuna().best_params == result.best_config
    (result.directory / "logs").mkdir(exist_ok=True)
    (result.directory / "logs" / log_name(1, 0, 1)).write_text("hello\n")
    assert again.log(1) == result.log(1) == result.log(result.trials[1]) == "hello\n"
    for read in (again.log, again.load):
        with pytest.raises(UserError, match="trial must be one of the 24 trials of this result, got 99"):
            read(99)


def test_a_result_reads_nothing_of_a_run_that_replaced_its_own(search: Any, tmp_path: Path) -> None:
    result = search(train_best=True)
    loaded = load_run(tmp_path / "runs" / "first")
    resumed = search(train_best=True, resume=True)
    assert result.load_best() == resumed.load_best() == 3
    new = search(train_best=True, overwrite=True)
    assert new.load_best() == 3
    for old in (result, loaded, resumed):
        for read in (
            old.load_best,
            old.training.load,
            old.decision_log,
            old.plot.history,
            lambda old=old: old.log(0),
            lambda old=old: old.files(0),
            lambda old=old: compare_runs([new, old]),
            lambda old=old: search(name="second", warm_start=[old]),
        ):
            with pytest.raises(UserError, match=r"'first' was deleted and started again after this result"):
                read()


def test_a_run_whose_states_are_elsewhere(search: Any, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    result = search(directory=url, store=tmp_path / "states", train_best=True)
    again = load_run(f"{url}/first")
    assert again == result
    assert again.training is not None
    assert again.training.load() == 3
    with pytest.raises(ConfigError, match=r"there is no run in '.*first'; use the directory of one"):
        load_run(tmp_path / "runs" / "first")


@pytest.mark.parametrize("store", [None, "runs"])
def test_a_run_that_was_moved(search: Any, tmp_path: Path, store: str | None) -> None:
    search(train_best=True, store=None if store is None else tmp_path / store)
    shutil.move(tmp_path / "runs" / "first", tmp_path / "elsewhere here")
    again = load_run(tmp_path / "elsewhere here")
    assert again.directory == tmp_path / "elsewhere here"
    assert again.load_best() == 3
    assert again.training is not None
    assert again.training.load() == 3


def test_a_directory_whose_name_has_a_space_holds_the_run_s_states(search: Any, tmp_path: Path) -> None:
    result = search(directory=tmp_path / "my runs", train_best=True)
    assert result.training.load() == 3
    assert [directory.name for directory in tmp_path.iterdir()] == ["my runs"]


@pytest.mark.parametrize("store", ["checkpoints", ".", "a/b c", "s3://bucket/first"])
def test_paths_are_read_back(tmp_path: Path, store: str) -> None:
    url = store if "://" in store else local_url(tmp_path / store)
    paths = RunPaths(tmp_path, url)
    assert RunPaths.recorded(tmp_path, paths.recorded_store) == paths
    moved = RunPaths.recorded(Path("/elsewhere"), paths.recorded_store)
    assert moved.store == (url if "://" in store else local_url(Path("/elsewhere", store)))


def test_a_run_that_goes_on_and_how_it_ended(search: Any, tmp_path: Path) -> None:
    background, seen, run = Background(), [], tmp_path / "runs" / "first"

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted):
            seen.append(load_run(run))
            if event.trial == 2:
                background.stop()

    def train(x: float, reporter: Reporter) -> float:
        if reporter.trial == 2:
            fns.swallow_everything(x, reporter)
        return x

    result = background.run(search, train, max_budget=10**9, callbacks=[on_event])
    assert [it.ending for it in seen] == ["running"] * 3
    assert seen[2].counts == {TrialState.COMPLETED: 2, TrialState.RUNNING: 1}
    assert result.ending == load_run(run).ending == "stopped"
    resumed = search(lambda x: x, max_budget=10**9, resume=True)
    assert resumed.ending == load_run(run).ending == "completed"
    assert load_run(run) == resumed


def test_a_run_whose_driver_was_killed(tmp_path: Path) -> None:
    code = f"""
import os, signal
from maggy_like import Float, lagom
def train(x, reporter):
    if reporter.trial == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return x
lagom(train, {{"x": Float(0, 1)}}, optimizer="random", engine="inline", n_trials=4, name="first",
      directory={str(tmp_path)!r}, progress=False)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == -signal.SIGKILL
    result = load_run(tmp_path / "first")
    assert result.ending == "killed"
    assert result.counts == {TrialState.COMPLETED: 2, TrialState.RUNNING: 1}
    assert 0 <= result.seconds < 300


def test_a_run_that_ended_with_an_error(search: Any, tmp_path: Path) -> None:
    class Breaks(RandomSearch):
        def ask(self, index: int, history: History) -> Config | None:
            if index == 2:
                raise OptimizerError("it broke")
            return super().ask(index, history)

    with pytest.raises(OptimizerError, match="it broke"):
        search(optimizer=Breaks())
    result = load_run(tmp_path / "runs" / "first")
    assert (result.ending, len(result.trials) <= 2) == ("error", True)


def test_of_a_damaged_journal_the_whole_lines_are_read(
    search: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = search()
    file = tmp_path / "runs" / "first" / "journal.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"measured"' in line)
    file.write_bytes(b"".join([*lines[:at], lines[at].replace(b"measured", b"mea5ured"), *lines[at + 1 :]]))
    before = contents(tmp_path)
    with caplog.at_level(logging.WARNING):
        again = load_run(tmp_path / "runs" / "first")
    assert f"the journal is damaged, so only its intact part was read: {file}, line {at + 1} is damaged" in caplog.text
    assert [trial.config for trial in again.trials] == [trial.config for trial in result.trials]
    assert contents(tmp_path) == before
    caplog.clear()
    file.write_bytes(b"".join(lines).replace(b"\n", b"\r\n"))  # as a copy by way of Windows
    with caplog.at_level(logging.WARNING):
        again = load_run(tmp_path / "runs" / "first")
    assert [trial.value for trial in again.trials] == [trial.value for trial in result.trials]
    assert "line 8 is damaged" in caplog.messages[0]
    assert caplog.messages[0].endswith(f"; and {len(lines) - 8} more")
    file.write_bytes(lines[0][:-9])
    with pytest.raises(JournalError, match="line 1 must be the header of a run"):
        load_run(tmp_path / "runs" / "first")


def test_what_is_no_run(search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(name="august")
    search(name="winter")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").rename("maggy_runs")
    with pytest.raises(
        ConfigError, match=r"'maggy_runs' is a directory of runs, .*: 'maggy_runs/august', 'maggy_runs/winter'$"
    ):
        load_run("maggy_runs")
    monkeypatch.setattr("maggy_like.results.runs._MOST_LISTED", 1)
    with pytest.raises(ConfigError, match=r"there is no run in 'winter'.*\(did you mean 'maggy_runs/winter'\?\)"):
        load_run("winter")  # among more runs than are looked at
    for given in ("maggy_runs/agust", "agust", "august"):
        with pytest.raises(ConfigError, match=r"there is no run in .*\(did you mean 'maggy_runs/august'\?\)"):
            load_run(given)
    with pytest.raises(ConfigError, match=r"there is no run in 'nowhere/at/all'; use the directory of one, as in"):
        load_run("nowhere/at/all")
    with pytest.raises(ConfigError, match=r"'nowhere://x' .* opened: .*; use a path, or a protocol that fsspec"):
        load_run("nowhere://x")
    with pytest.raises(ConfigError, match=r"jsonl' is in the directory of a run; use that directory: '.*august'$"):
        load_run("maggy_runs/august/journal.jsonl")
    with pytest.raises(ConfigError, match="run must be the directory of a run, got 3; use its path or URL"):
        load_run(3)  # type: ignore[arg-type]


def test_runs_of_an_object_store_are_named(search: Any) -> None:
    runs = f"memory://{uuid.uuid4().hex}"
    search(directory=runs, name="august")
    with pytest.raises(ConfigError, match=rf"is a directory of runs, .*: '{runs}/august'"):
        load_run(runs)


@pytest.mark.parametrize("copied_first", [True, False])
def test_attempts_of_a_log_stand_in_order_wherever_they_were_written(copied_first: bool, tmp_path: Path) -> None:
    """A worker that does not see the run's directory copies its log to the store."""
    run, store = tmp_path / "run", tmp_path / "store" / "run"
    for time, (directory, attempt) in enumerate(((store, 1), (run, 2)) if copied_first else ((run, 1), (store, 2)), 1):
        path = directory / "logs" / log_name(0, attempt=1 if directory == run else attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"attempt {attempt}\n")
        os.utime(path, (time, time))
    assert read_log(RunPaths(run, store.as_uri()), 0, 0, 2) == "attempt 1\nattempt 2\n"
