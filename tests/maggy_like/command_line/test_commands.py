"""The command line, on a run that is over, and on a log that grows."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import optuna
import pandas
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from optuna_storages import database

from maggy_like import AblationStudy, Constant, Float, ablate, lagom, load_run
from maggy_like.command_line import main, parser
from maggy_like.command_line.commands import LogTail, follow_log
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import log_name
from maggy_like.storage.local_files import LocalFiles
from maggy_like.storage.run_paths import RunPaths
from maggy_like.worker.agent.log_file import LogFile

pytestmark = pytest.mark.slow


def train(lr: float, reporter: Any) -> None:
    for step in (1, 2):
        print(f"lr {lr} at step {step}")
        reporter.report(score=lr * step, step=step)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    points = [{"lr": 0.25}, {"lr": 0.75}, {"lr": 0.5}]
    lagom(train, {"lr": Float(0, 1)}, optimizer="random", n_trials=3, max_budget=2, points_to_evaluate=points,
          engine="inline", directory=tmp_path / "runs", name="august", progress=False)  # fmt: skip
    return tmp_path / "runs"


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str], runs: Path) -> Any:
    """What a command that succeeds prints."""

    def run(*arguments: str) -> list[str]:
        capsys.readouterr()
        assert main(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_list_and_show(lines: Any, runs: Path) -> None:
    (head, run) = lines("list", str(runs))
    assert head.split()[0] == "run"
    assert run.split()[0] == "august"
    shown = lines("show", str(runs / "august"), "--trials", "2")
    assert shown[0].startswith("completed after")
    assert [line.split()[:4] for line in shown[-2:]] == [["1", "completed", "1.5", "2"], ["2", "completed", "1", "2"]]
    log = lines("show", str(runs / "august"), "--decision-log")
    assert log[-1] == load_run(runs / "august").decision_log()[-1]


def noisy(dropout: float, seed: int) -> float:
    return (seed * 7 % 5 + 1) / 10 * (1 - dropout)


def test_an_ablation_is_shown_with_its_table(lines: Any, tmp_path: Path) -> None:
    study = AblationStudy(config={"dropout": 0.5}).config(dropout=0.0)
    answer = ablate(noisy, study, metric="loss", repeats=3, seed=2, negligible=1, engine="inline", directory=tmp_path,
                    name="study", progress=False)  # fmt: skip
    shown = lines("show", str(tmp_path / "study"))
    assert shown[shown.index("") + 1 :] == repr(answer).splitlines()
    assert any("no larger than 1" in line for line in shown)
    page = tmp_path / "page.html"
    lines("report", str(tmp_path / "study"), "-o", str(page))
    assert ">Differences<" in page.read_text()


def test_tail_has_the_newest_lines_without_their_colors(lines: Any, runs: Path) -> None:
    logs = runs / "august" / "logs"
    logs.mkdir(exist_ok=True)
    (logs / log_name(2, 0, 1)).write_text("one\n\x1b[31mtwo\x1b[0m\nthree\n")
    assert lines("tail", str(runs / "august"), "2", "-n", "2") == ["two", "three"]
    assert lines("tail", str(runs / "august"), "--lines", "1") == ["==> trial 2 (completed) <==", "three"]


def test_watch_of_a_run_that_is_over_shows_what_it_found(lines: Any, runs: Path) -> None:
    assert f"files: {runs / 'august'}" in lines("watch", str(runs / "august"), "--plain")


SHOWN = queue.SimpleQueue[str]()


def print_and_see_it_shown(directory: str) -> float:
    """A trial beside which somebody follows its lines."""
    run = Path(directory, "live")
    (run / "logs").mkdir(exist_ok=True)
    with open(run / "logs" / log_name(0, 0, 1), "w", buffering=1) as log:
        log.write("zero\none\ntw")
        result = load_run(run)
        assert result.ending is Ending.RUNNING
        threading.Thread(target=follow_log, args=(result, 0, 0, 1, SHOWN.put), name="tail -f", daemon=True).start()
        assert SHOWN.get(timeout=60) == "one\n"
        log.write("o\n")
        assert SHOWN.get(timeout=60) == "two\n"
        log.write("the last")
    return 1.0


def test_tail_follows_a_trial_until_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lagom(print_and_see_it_shown, {"directory": Constant(str(tmp_path))}, optimizer="random", n_trials=1,
          engine="inline", directory=tmp_path, name="live", progress=False)  # fmt: skip
    assert SHOWN.get(timeout=60) == "the last"
    for thread in threading.enumerate():
        if thread.name == "tail -f":
            thread.join(60)
            assert not thread.is_alive()
    assert main(["tail", str(tmp_path / "live"), "0", "-f"]) == 0
    assert capsys.readouterr().out == "zero\none\ntwo\nthe last\n"


def test_report(lines: Any, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert lines("report", str(runs / "august"), "-o", str(page)) == [f"the report is in {page}"]
    assert "august" in page.read_text()
    assert main(["report", str(runs / "august"), "-o", str(page)]) == 1
    lines("report", str(runs / "august"), "-o", str(page), "--force")


def test_optuna_opens_what_was_exported(lines: Any, runs: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    lines("export", str(runs / "august"), "--format", "optuna", "-o", url)
    with database(url) as storage:
        study = optuna.load_study(study_name="august", storage=storage)
        assert study.direction is optuna.study.StudyDirection.MAXIMIZE
        found = [(trial.state.name, trial.params, trial.value, trial.intermediate_values) for trial in study.trials]
    assert found == [("COMPLETE", {"lr": lr}, 2 * lr, {1: lr, 2: 2 * lr}) for lr in (0.25, 0.75, 0.5)]


def test_an_export_to_optuna_says_whether_the_study_exists_or_the_storage_fails(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(storage: str) -> str:
        assert main(["export", str(runs / "august"), "--format", "optuna", "-o", storage]) == 1
        return capsys.readouterr().err

    assert main(["export", str(runs / "august"), "--format", "optuna", "-o", f"{tmp_path}/studies.db"]) == 0
    assert "has a study 'august' already; pass another --output" in said(f"{tmp_path}/studies.db")
    assert "Optuna cannot open the storage" in said(f"sqlite:///{tmp_path}/missing/studies.db")


def test_tables_keep_their_types(lines: Any, tmp_path: Path) -> None:
    def mixed(lr: float, layers: tuple[int, ...], act: Any) -> float:
        return lr + len(layers)

    lagom(mixed, {"lr": Float(0, 1), "layers": [(1, 2), (3,)], "act": [1, "relu"]}, optimizer="random", n_trials=8,
          seed=1, engine="inline", directory=tmp_path, name="types", progress=False)  # fmt: skip
    wanted = load_run(tmp_path / "types").to_pandas()
    for name in ("parquet", "csv"):
        lines("export", str(tmp_path / "types"), "--format", name, "-o", str(tmp_path / f"types.{name}"))
    read = pandas.read_parquet(tmp_path / "types.parquet")
    assert list(read.columns) == list(wanted.columns)
    for column in ("trial", "state", "value", "step", "attempts", "lr"):
        pandas.testing.assert_series_equal(read[column], wanted[column])
    assert [tuple(each) for each in read["layers"]] == list(wanted["layers"])
    assert list(read["act"]) == [str(act) for act in wanted["act"]]
    exact = pandas.read_csv(tmp_path / "types.csv", float_precision="round_trip")
    assert list(exact["lr"]) == list(wanted["lr"])


def test_a_run_at_a_url(lines: Any) -> None:
    directory = "memory://command-line"
    lagom(train, {"lr": Float(0, 1)}, optimizer="random", n_trials=3, max_budget=2, engine="inline",
          directory=directory, name="august", progress=False)  # fmt: skip
    fs = fsspec.filesystem("memory")
    try:
        assert lines("list", directory)[1].split()[0] == "august"
        assert lines("show", f"{directory}/august")[-1].split()[1] == "completed"
        assert f"files: {directory}/august" in lines("watch", f"{directory}/august")
        lines("export", f"{directory}/august", "-o", f"{directory}/august.csv")
        assert fs.cat("/command-line/august.csv").count(b"\n") == 4
    finally:
        fs.rm("/command-line", recursive=True)


def test_export(lines: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lines("export", str(runs / "august")) == ["3 trials are in august.csv"]
    assert list(pandas.read_csv("august.csv")["lr"]) == [0.25, 0.75, 0.5]
    lines("export", str(runs / "august"), "--curves", "-o", "curves.parquet")
    assert len(pandas.read_parquet("curves.parquet")) == 6
    (said,) = lines("export", str(runs / "august"), "--format", "optuna")
    assert said == "3 trials are in the study 'august' of sqlite:///august.db"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "{runs}/augst"], "did you mean"),
        (["list", "{runs}/none"], "there are no runs in"),
        (["list", "{runs}/august"], "is a run, not a directory of runs; use maggy-like show"),
        (["run", "{runs}/none.py"], "none.py' cannot be read"),
        (["run", "--resume", "{runs}/none.py"], "add --name NAME"),
        (["run", "--overwrite", "{runs}/none.py"], "--overwrite deletes a run by its name; add --name NAME"),
        (["tail", "{runs}/august", "7"], "TRIAL must be one of the 3 trials of"),
        (["tail", "{runs}/august", "2", "--rank", "3"], "--rank must be at most 0 for trial 2, got 3"),
        (
            ["export", "{runs}/august", "--format", "csv", "-o", "{runs}/august/journal.jsonl"],
            "already; pass --force to replace it",
        ),
        (["export", "{runs}/august", "-o", "{runs}/none/trials.csv"], "cannot be written"),
        (["export", "{runs}/august", "-o", "{runs}/a.json"], "a.json' does not name a format; pass --format csv, parq"),
        (["export", "{runs}/august", "--format", "csv", "-o", "sqlite:///a.db"], "would be written as csv; leave"),
        (["export", "{runs}/august", "--format", "parquet", "-o", "{runs}/a.csv"], "as parquet; leave --format out"),
        (["report", "{runs}/august", "-o", "{runs}"], "is a directory; pass the path of a file as --output"),
    ],
)
def test_mistakes(arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument.format(runs=runs) for argument in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("maggy-like: ")
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(("redirection", "status", "said"), [
    (">/dev/full", 1, "maggy-like: [Errno 28] No space left on device\n"), (">&-", 0, ""), ("| head -0", 0, ""),
])  # fmt: skip
def test_an_output_that_takes_nothing_is_no_traceback(redirection: str, status: int, said: str, runs: Path) -> None:
    shown = f"{shlex.quote(sys.executable)} -m maggy_like show {shlex.quote(str(runs / 'august'))}"
    command = ["bash", "-o", "pipefail", "-c", f"{shown} {redirection}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.e2e
def test_dashboards_beside_each_other_end_with_ctrl_c_and_leave_nothing(runs: Path) -> None:
    command = [sys.executable, "-m", "maggy_like", "dashboard", str(runs), "--no-browser"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        links = [re.search(r"http://127\.0\.0\.1:\d+/", each.stdout.readline()) for each in (first, second)]
        for link, dashboard in zip(links, (first, second), strict=True):
            assert link is not None
            with urllib.request.urlopen(f"{link[0]}api/runs", timeout=60) as answer:
                assert b'"august"' in answer.read()
            assert psutil.Process(dashboard.pid).children() == []
            dashboard.send_signal(signal.SIGINT)
            assert dashboard.wait(60) == 130
            assert dashboard.stderr.read() == ""


def test_what_the_output_cannot_encode_is_replaced(tmp_path: Path) -> None:
    lagom(lambda config: config["größe"], {"größe": Float(0, 1)}, optimizer="random", n_trials=1, direction="max",
          engine="inline", directory=tmp_path, name="august", progress=False)  # fmt: skip
    command = [sys.executable, "-m", "maggy_like", "list", str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr??e=" in done.stdout


def test_an_old_option_is_an_error_that_names_the_new_one(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["show", str(runs / "august"), "--story"])
    assert "there is no option --story; use --decision-log" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["tail", "run", "--trial", "3"], ["export", "run", "trials.csv"]])
def test_what_a_command_does_not_take_is_answered_with_its_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr().err
    assert f"usage: maggy-like {arguments[0]} [-h]" in said
    assert f"maggy-like {arguments[0]}: error: unrecognized arguments: {' '.join(arguments[2:])}" in said


@pytest.mark.parametrize("arguments", [[], ["shwo"], ["tail", "run", "-3"], ["tail", "run", "-n", "0"]])
def test_what_cannot_be_read_ends_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: maggy-like" in capsys.readouterr().err


def test_the_commands_that_their_page_shows_can_be_typed() -> None:
    text = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
    commands = re.findall(r"(?:^\$ |`)maggy-like ([a-z]+ [^`\n]*)", text, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(re.sub(r"[][]", "", command).replace("TRIAL", "7"))
        assert parser().parse_args(words).command == words[0]


# -- what is read of a log while it grows -----------------------------------------------------------


def tail_of(directory: Path) -> LogTail:
    return LogTail(RunPaths(directory, (directory / "checkpoints").as_uri()), 3, 0)


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[LogFile]:
    with contextlib.closing(LogFile(str(tmp_path / "logs"), log_name(3))) as log_file:
        yield log_file


def test_a_look_reads_what_was_added_alone(log_file: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail, read = tail_of(tmp_path), [0]
    cat_file = LocalFiles.cat_file

    def counted(fs: Any, *args: Any, **kwargs: Any) -> bytes:
        data = bytes(cat_file(fs, *args, **kwargs))
        read[0] += len(data)
        return data

    monkeypatch.setattr(LocalFiles, "cat_file", counted)
    assert tail.look(1, is_over=False) == []
    log_file.write(b"a line\n" * 100_000)
    assert len(tail.look(1, is_over=False)) == 100_000
    read[0] = 0
    for number in range(20):
        log_file.write(f"line {number}\n".encode())
        assert tail.look(1, is_over=False) == [f"line {number}\n"]
        assert tail.look(1, is_over=False) == []
    assert read[0] < 1000


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(["", "ab", "é", "abab"]), max_size=3)), max_size=12))
def test_each_line_is_shown_once_whatever_is_redrawn_behind_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, list[str]]]
) -> None:
    """Compare all lines except the last ones that are redrawn, which may be missing or there several times."""
    directory = tmp_path_factory.mktemp("run")
    log_file, tail = LogFile(str(directory / "logs"), log_name(3)), tail_of(directory)
    finished: list[str] = []
    shown: list[str] = []
    for is_live, rows in steps:
        if is_live:
            log_file.show("  ".join(rows).encode())
        else:
            finished += [f"{row}\n" for row in rows]
            log_file.write("".join(f"{row}\n" for row in rows).encode())
        shown += tail.look(1, is_over=False)
        assert shown == finished
    log_file.show(b"")
    log_file.close()
    assert shown + tail.look(1, is_over=True) == finished


def test_rows_that_were_shown_and_are_redrawn_cost_no_later_line(log_file: LogFile, tmp_path: Path) -> None:
    tail = tail_of(tmp_path)
    log_file.write(b"one\n")
    log_file.show(b"bar 1\nbar 2")  # two bars
    assert tail.look(1, is_over=False) == ["one\n", "bar 1\n"]
    log_file.write(b"bar 1 done\nbar 2 done\nthree\n")
    assert tail.look(1, is_over=False) == ["bar 2 done\n", "three\n"]
    log_file.write(b"four\n")
    assert tail.look(1, is_over=False) == ["four\n"]


def test_files_of_several_attempts_in_an_object_store_are_read_in_order(
    object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.items():
        monkeypatch.setenv(name, value)
    url = f"s3://runs/{uuid.uuid4().hex}"
    fs, tail = fsspec.filesystem("s3"), LogTail(RunPaths(url, f"{url}/checkpoints"), 3, 0)
    fs.pipe_file(f"{url}/logs/{log_name(3)}", b"one\n")
    assert tail.look(1, is_over=False) == ["one\n"]
    fs.pipe_file(f"{url}/logs/{log_name(3)}", b"one\ntwo\nthr")
    assert tail.look(1, is_over=False) == ["two\n"]
    fs.pipe_file(f"{url}/logs/{log_name(3)}", b"one\ntwo\nthree\n")
    assert tail.look(2, is_over=False) == ["three\n"]
    fs.pipe_file(f"{url}/logs/{log_name(3, attempt=2)}", b"again\nand")
    assert tail.look(2, is_over=False) == ["again\n"]
    assert tail.look(2, is_over=True) == ["and"]
