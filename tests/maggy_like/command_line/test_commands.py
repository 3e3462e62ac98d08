"""The command line, on a run that is over."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pandas
import pytest

from maggy_like import Float, lagom, load_run
from maggy_like.command_line import main
from maggy_like.command_line.parser import parser
from maggy_like.storage.log_file import log_name


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
    story = lines("show", str(runs / "august"), "--story")
    assert story[-1] == load_run(runs / "august").story()[-1]


def test_tail_has_the_newest_lines_without_their_colours(lines: Any, runs: Path) -> None:
    logs = runs / "august" / "logs"
    logs.mkdir(exist_ok=True)
    (logs / log_name(2, 0, 1)).write_text("one\n\x1b[31mtwo\x1b[0m\nthree\n")
    assert lines("tail", str(runs / "august"), "2", "-n", "2") == ["two", "three"]
    assert lines("tail", str(runs / "august"), "--lines", "1") == ["==> trial 2 (completed) <==", "three"]


def test_watch_of_a_run_that_is_over_shows_what_it_found(lines: Any, runs: Path) -> None:
    assert lines("watch", str(runs / "august"), "--plain")[-1] == f"files: {runs / 'august'}"


def test_export(lines: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lines("export", str(runs / "august")) == ["3 trials are in august.csv"]
    assert list(pandas.read_csv("august.csv")["lr"]) == [0.25, 0.75, 0.5]
    lines("export", str(runs / "august"), "--format", "parquet", "--curves", "-o", "curves.parquet")
    assert len(pandas.read_parquet("curves.parquet")) == 6
    (said,) = lines("export", str(runs / "august"), "--format", "optuna")
    assert said == "3 trials are in the study 'august' of sqlite:///august.db"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "{runs}/augst"], "did you mean"),
        (["tail", "{runs}/august", "7"], "there is no trial 7 among the 3"),
        (
            ["export", "{runs}/august", "-o", "{runs}/august/journal.jsonl"],
            "already; pass --force to replace it",
        ),
        (["export", "{runs}/august", "-o", "{runs}/none/trials.csv"], "cannot be written"),
    ],
)
def test_mistakes(arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument.format(runs=runs) for argument in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("maggy-like: ")
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("arguments", [[], ["shwo"], ["tail", "run", "-3"], ["tail", "run", "-n", "0"]])
def test_what_cannot_be_read_ends_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: maggy-like" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["README.md", "docs/command-line.md"])
def test_the_commands_that_the_pages_show_can_be_typed(page: str) -> None:
    text = (Path(__file__).parents[3] / page).read_text()
    commands = re.findall(r"(?:^\$ |`)maggy-like ([a-z]+ [^`\n]*)", text, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(re.sub(r"[][]", "", command).replace("TRIAL", "7"))
        assert parser().parse_args(words).command == words[0]
