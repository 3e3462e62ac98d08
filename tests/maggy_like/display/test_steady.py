"""A display that raises: nothing is lost, and the user learns why it is gone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import train_functions as fns

from maggy_like import Float, lagom
from maggy_like.display import LogLine, SilentDisplay, Snapshot
from maggy_like.display.plain import PlainDisplay
from maggy_like.display.steady import SteadyDisplay
from maggy_like.protocol.endings import Ending, Phase

SNAPSHOT = Snapshot("run", "/runs/run", "random", "max", Phase.SEARCHING, 0.0)


class Failing(SilentDisplay):
    """Raises in one of its methods."""

    def __init__(self, method: str) -> None:
        self.was_released = False
        setattr(self, method, self.fail)

    def fail(self, *_: object) -> None:
        raise ValueError("a display's own mistake")

    def release(self) -> None:
        self.was_released = True


@pytest.mark.parametrize("method", ["start", "update", "finish"])
def test_plain_lines_take_the_place_of_a_display_that_fails(
    method: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(method)
    display = SteadyDisplay(failing)
    display.start(SNAPSHOT)
    display.update(SNAPSHOT, [LogLine(3, "a line of the trial")])
    display.finish(replace(SNAPSHOT, phase=Ending.COMPLETED), [LogLine(3, "the last line")])
    said = capsys.readouterr().out
    assert said.count("files in /runs/run\n") == 2  # once at the head, and once in the summary
    assert said.count("[trial 3] a line of the trial") == (method != "finish")
    assert said.count("[trial 3] the last line") == 1
    assert "run: completed" in said
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "Failing failed; the run continues, and is shown by plain lines"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a display's own mistake"
    assert failing.was_released


def test_where_nothing_can_be_written_the_run_goes_on_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    display = SteadyDisplay(PlainDisplay())
    monkeypatch.setattr("maggy_like.display.plain._write", closed)
    for _ in range(3):
        display.update(SNAPSHOT, [LogLine(None, "a line")])
    display.finish(SNAPSHOT, [])
    assert len(caplog.records) == 1


@pytest.mark.e2e
def test_a_search_whose_display_fails_shows_the_rest_and_its_summary(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    update, calls = PlainDisplay.update, []

    def fail_once(display: PlainDisplay, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        calls.append(len(lines))
        if len(calls) == 2:
            raise ValueError("a display's own mistake")
        update(display, snapshot, lines)

    monkeypatch.setattr(PlainDisplay, "update", fail_once)
    result = lagom(fns.climb, {"x": Float(0, 1)}, optimizer="random", n_trials=3, max_budget=2, workers=1,
                   engine="inline", directory=tmp_path, name="run", progress="plain")  # fmt: skip
    assert result.ending == "completed"
    assert "run: completed" in capsys.readouterr().out
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["PlainDisplay"]
