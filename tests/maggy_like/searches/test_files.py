"""What trials write to files with the same names is not mixed, and is found after the search."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from maggy_like import ASHA, Float, LocalEngine, Reporter, Store, lagom, load_run, run

pytestmark = pytest.mark.e2e


def search(train: Any, tmp_path: Path, **options: Any) -> Any:
    options = {"optimizer": "random", "direction": "max", "n_trials": 4, "workers": 2, "engine": "local"} | options
    return lagom(train, {"x": Float(0, 1)}, directory=tmp_path / "runs", name="files", progress=False, **options)


def writes(x: float, reporter: Reporter) -> float:
    assert not [*reporter.directory.iterdir()]
    for _ in range(20):
        Path("best.txt").write_text(f"{x}")
        os.makedirs("out/version_0", exist_ok=True)
        Path("out/version_0/model").write_text(f"{x}")
        (reporter.directory / "notes").write_text(f"{x}")
        assert Path("best.txt").read_text() == Path("out/version_0/model").read_text() == f"{x}"
    return x


def test_trials_that_write_the_same_names_are_not_mixed_and_their_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("best.txt").write_text("of an earlier script")
    Path("out").mkdir()
    result = search(writes, tmp_path)
    assert not result.failures
    for found in (result, load_run(tmp_path / "runs" / "files")):
        for trial in found.trials:
            files = found.files(trial)
            assert [*files] == ["best.txt", "notes", "out/version_0/model"]
            assert {files.read(name).decode() for name in files} == {str(trial.config["x"])}
    assert result.files(0).fetch(tmp_path / "copy", "out/version_0/model") == [tmp_path / "copy/out/version_0/model"]
    assert Path("best.txt").read_text() == "of an earlier script"
    assert sorted(os.listdir()) == ["best.txt", "copy", "out", "runs"]
    assert not (tmp_path / "runs" / "files" / "work").exists()


def test_data_is_found_by_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "data").mkdir(parents=True)
    (tmp_path / "work" / "data" / "x.csv").write_text("0.5")
    (tmp_path / "shared.csv").write_text("0.25")
    monkeypatch.chdir(tmp_path / "work")

    def reads(x: float) -> float:
        return float(Path("data/x.csv").read_text()) + float(Path("../shared.csv").read_text())

    assert search(reads, tmp_path, n_trials=1).best_value == 0.75


def test_an_engine_can_share_the_callers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = LocalEngine(working_directory="shared")
    result = search(writes, tmp_path, engine=engine, n_trials=1, workers=1)
    assert Path("best.txt").exists()
    assert [*result.files(0)] == ["notes"]


def test_files_are_there_again_after_a_kill(tmp_path: Path) -> None:
    def killed(x: float, reporter: Reporter) -> float:
        log = reporter.directory / "log"
        if reporter.attempt == 2:
            return float(log.read_text() == "first" and Path("here").read_text() == "first")
        log.write_text("first")
        Path("here").write_text("first")
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    result = search(killed, tmp_path, n_trials=1, workers=1)
    assert result.best_value == 1.0


def test_a_promoted_trial_continues_with_its_files(tmp_path: Path) -> None:
    def train(x: float, reporter: Reporter) -> None:
        log = reporter.directory / "log"
        step = (reporter.restore() or {"step": 0})["step"]
        known = log.read_text() if log.exists() else ""
        assert known == "x" * step, (known, step)
        while step < reporter.budget:
            step += 1
            log.write_text("x" * step)
            reporter.checkpoint({"step": step})
            reporter.report(x, step=step)

    result = search(train, tmp_path, optimizer=ASHA(sampler="random", eta=2), n_trials=6, max_budget=4)
    assert not result.failures
    assert max(trial.attempt for trial in result.trials) > 1
    for trial in result.trials:
        assert result.files(trial).read("log").decode() == "x" * trial.step


@pytest.mark.long
def test_files_of_a_run_in_an_object_store(
    object_store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.items():
        monkeypatch.setenv(name, value)
    options = {"direction": "max", "optimizer": "random", "n_trials": 2, "workers": 2, "engine": "local"}
    result = lagom(writes, {"x": Float(0, 1)}, directory="s3://runs/of-files", name="files", progress=False, **options)
    assert not result.failures
    for trial in load_run("s3://runs/of-files/files").trials:
        paths = result.files(trial).fetch(tmp_path / str(trial.id))
        assert {path.read_text() for path in paths} == {str(trial.config["x"])}
        assert len(paths) == 3


def test_the_best_trials_files_are_kept(tmp_path: Path) -> None:
    result = search(writes, tmp_path, store=Store(keep_files=1))
    assert [trial.id for trial in result.trials if result.files(trial)] == [result.best_trial.id]


def test_what_is_too_large_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(x: float, reporter: Reporter) -> float:
        (reporter.directory / "large").write_bytes(bytes(2000))
        (reporter.directory / "small").write_bytes(bytes(10))
        return x

    store = Store(tmp_path / "states", max_files_gb=1e-6)
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", direction="max", n_trials=1, workers=1, store=store,
                   engine="local", directory=tmp_path, progress="plain")  # fmt: skip
    assert [*result.files(0)] == ["small"]
    assert result.files(0).left_out == ("large (2.0 kB)",)
    assert "1 of its 2 files are not kept: large (2.0 kB)" in capsys.readouterr().out


def test_files_of_a_function_that_runs_alone_and_in_this_process(tmp_path: Path) -> None:
    def train(reporter: Reporter) -> str:
        (reporter.directory / "x").write_text("1")
        return os.getcwd()

    assert run(train, engine="inline", directory=tmp_path, name="alone", progress=False) == os.getcwd()
    result = load_run(tmp_path / "alone")
    assert result.files(result.training.trial).read("x") == b"1"


def test_ranks_on_a_machine_share_the_directories_of_their_trial(tmp_path: Path) -> None:
    def train(reporter: Reporter) -> list[float]:
        (reporter.directory / f"own{reporter.rank}").write_text("1")
        Path(f"relative{reporter.rank}").write_text("1")
        both = reporter.average(own=len([*reporter.directory.iterdir()]))  # once all have written
        return [both["own"] > 0, Path(f"relative{1 - reporter.rank}").exists()]

    assert run(train, workers=2, engine="local", directory=tmp_path, name="ranks", progress=False) == [True, True]
    result = load_run(tmp_path / "ranks")
    assert [*result.files(result.training.trial)] == ["own0", "own1", "relative0", "relative1"]


ON_A_CLUSTER = """
import sys
from pathlib import Path
from maggy_like import ASHA, Float, lagom, load_run, run, spark_session

spark_session(sys.argv[1], conf=eval(sys.argv[2]))
runs = sys.argv[3]

def train(x, reporter):
    (reporter.directory / "x").write_text(f"{x}")
    lines = Path("log.txt").read_text() if Path("log.txt").exists() else ""
    for step in range(lines.count("\\n"), reporter.budget):
        Path("log.txt").write_text(lines := lines + f"{x}\\n")
        reporter.checkpoint(step)
        reporter.report(x, step=step)
    return x

result = lagom(train, {"x": Float(0, 1)}, optimizer=ASHA(eta=2), max_budget=4, n_trials=6, metric="x",
               direction="max", directory=runs, name="search", seed=1, progress=False)
for trial in load_run(f"{runs}/search").trials:
    files = result.files(trial)
    own = files.read("x").decode()
    print(own == str(trial.config["x"]), {*files.read("log.txt").decode().split()} == {own}, trial.state)

def of_ranks(reporter):
    Path(f"relative{reporter.rank}").write_text("1")
    (reporter.directory / f"own{reporter.rank}").write_text("1")
    reporter.average(x=1.0)

run(of_ranks, workers=2, directory=runs, name="ranks", progress=False)
trained = load_run(f"{runs}/ranks")
print(sorted(trained.files(trained.training.trial)))
"""


@pytest.mark.long
@pytest.mark.spark
def test_files_come_from_all_executors_of_a_cluster(cluster_script: Any, tmp_path: Path) -> None:
    done = cluster_script(ON_A_CLUSTER, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *trials, ranks = done.stdout.splitlines()[-7:]
    assert all(line.startswith("True True") for line in trials), done.stdout
    assert ranks == "['own0', 'own1', 'relative0', 'relative1']"


def test_a_reporter_without_a_search_has_a_directory() -> None:
    reporter = Reporter()
    (reporter.directory / "x").write_text("1")
    assert (reporter.directory / "x").read_text() == "1"
