"""What ``make bench`` says of figures that it is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import guard

KNOWN = {"virtual.event_us.10000": 10.0}


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(KNOWN))
    monkeypatch.setattr(guard, "BASELINE", path)
    return path


def run(monkeypatch: pytest.MonkeyPatch, figures: list[float], *arguments: str) -> int:
    measured = iter(figures)
    monkeypatch.setattr(guard, "measure", lambda name: {"virtual.event_us.10000": next(measured)})
    monkeypatch.setattr("sys.argv", ["guard", "--only", "virtual", *arguments])
    return guard.main()


def test_what_is_slower_twice_is_named(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [13.0, 12.5]) == 1
    assert "1 of 1 got slower by more than 20%: virtual.event_us.10000" in capsys.readouterr().out


def test_what_is_slower_once_may_be_the_machine(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [13.0, 11.0]) == 0


def test_the_present_figures_become_the_baseline(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [20.0], "--update") == 0
    assert json.loads(baseline.read_text()) == {"virtual.event_us.10000": 20.0}


def test_each_watched_figure_is_in_the_baseline_that_is_kept() -> None:
    kept = json.loads(guard.BASELINE.read_text())
    assert set(kept) == {f"{name}.{key}" for name, keys in guard.WATCHED.items() for key in keys}


@pytest.mark.parametrize("name", ["virtual", "dispatch"])
def test_the_calibration_takes_time(name: str) -> None:
    assert guard.calibration(name) > 0
