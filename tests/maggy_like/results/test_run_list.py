"""Runs listed and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import write_run
from maggy_like import Float, compare_runs, lagom, list_runs, load_run
from maggy_like.errors import ConfigError


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


def test_a_folder_without_runs_is_said_to_be_one(tmp_path: Path) -> None:
    assert repr(list_runs(tmp_path)) == f"no runs in {str(tmp_path)!r}"
    with pytest.raises(ConfigError, match="list_runs takes the folder of all runs"):
        list_runs(3)


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
    with pytest.raises(ConfigError, match="got no runs"):
        compare_runs([])
    with pytest.raises(ConfigError, match=r"takes a list of runs, got 'one'"):
        compare_runs("one")
