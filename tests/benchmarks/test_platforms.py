"""The benchmark of platforms, but for its settings: those take minutes of real Spark."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.platforms.__main__ import compare, figures, missed, row
from benchmarks.platforms.leftovers import MARK, Leftovers
from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import lost, search, wrong
from benchmarks.platforms.settings import QUICK, SETTINGS
from maggy_like import Result


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    found = search(tmp_path_factory.mktemp("runs"), engine="inline")
    assert 0.0 < found.first < found.total
    return found.result


def test_the_search_measures_what_it_must(result: Result) -> None:
    assert list(wrong(result)) == []
    assert lost(result) == 0


def test_what_is_missing_or_wrong_in_a_search_is_told(result: Result) -> None:
    assert list(wrong(dataclasses.replace(result, ending="stopped", trials=result.trials[1:]))) == [
        "the search ended as 'stopped'",
        "19 trials",
    ]
    first = result.trials[0]
    other = msgspec.structs.replace(first, config=result.trials[1].config)
    [what] = wrong(dataclasses.replace(result, trials=[other, *result.trials[1:]]))
    assert what.startswith("trial 0 measured ")


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = Outcome(["a", "b"], first=1.0, best=0.5, leftovers=["port 1"])
    outcome.write(tmp_path / "outcome.json")
    found = Outcome.read(tmp_path / "outcome.json")
    assert math.isnan(found.second)
    assert repr(found) == repr(outcome)


def test_figures_tell_what_is_missed() -> None:
    outcomes = {"one, two": Outcome(first=1.0, second=0.5, best=2.0), "three": Outcome(cancel=4.0, best=2.0)}
    compare(outcomes)
    found = figures(outcomes)
    assert found == {
        "settings": 2,
        "settings.ok": 2,
        "dynamic.lost": 0,
        "leftovers": 0,
        "cancel.s.max": 4.0,
        "one_two.first.s": 1.0,
        "one_two.second.s": 0.5,
        "three.cancel.s": 4.0,
    }
    assert not missed(found)
    for worse in ({"settings.ok": 1}, {"dynamic.lost": 1}, {"leftovers": 1}, {"cancel.s.max": 5.1}):
        assert missed(found | worse)
    outcomes["three"].best = 2.5
    compare(outcomes)
    assert missed(figures(outcomes))
    assert row("three", outcomes["three"]).endswith("the best value is 2.5, and elsewhere 2.0")


def test_what_a_process_left_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.platforms.leftovers.PATIENCE", 0.1)  # the process would never leave by itself
    leftovers = Leftovers("mine", tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.lock").write_text("process 1 on a machine")
    (tmp_path / "journal.lock").touch()  # as one is that was given back
    with subprocess.Popen([sys.executable, "-c", "input()"], env=os.environ | {MARK: "mine"}, stdin=-1) as process:
        found = leftovers.found()
        assert process.wait() < 0
    assert found[0].startswith(f"process {process.pid} ")
    assert f"lock {tmp_path / 'run' / 'journal.lock'}" in found[1:]
    assert f"lock {tmp_path / 'journal.lock'}" not in found


def test_the_quick_settings_are_some_of_all() -> None:
    assert set(QUICK) < set(SETTINGS)
