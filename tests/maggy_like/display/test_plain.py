from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable

import pytest

from maggy_like.display import LogLine, Snapshot
from maggy_like.display.plain import PlainDisplay
from maggy_like.protocol.endings import Ending
from optimizers.core.trial import TrialState

Snap = Callable[..., Snapshot]
Out = pytest.CaptureFixture[str]


def test_a_search(snap: Snap, capsys: Out) -> None:
    display = PlainDisplay()
    display.start(snap(elapsed=0.0, counts={}, best_trial=None, best_value=None))
    assert capsys.readouterr().out == "digits: asha, max accuracy, files in runs/digits-1\n"
    display.update(snap(elapsed=0.2), [LogLine(7, "\x1b[31mred\x1b[0m [red]"), LogLine(None, "worker 3 was lost")])
    log, lost, status = capsys.readouterr().out.splitlines()
    assert (log, lost) == ("[trial 7] red [red]", "worker 3 was lost")
    assert status.startswith("[12/30] best 0.973 (trial 4) | ")
    display.finish(snap(phase=Ending.COMPLETED), [LogLine(8, "bye")])
    assert capsys.readouterr().out.splitlines()[:2] == [
        "[trial 8] bye",
        "digits: completed after 0:30, 15 trials (4 completed, 1 stopped, 6 paused, 1 failed, 3 running)",
    ]


def test_when_a_status_comes(snap: Snap, capsys: Out) -> None:
    display = PlainDisplay()
    display.start(snap(elapsed=0.0))
    capsys.readouterr()

    def shown(**fields: object) -> int:
        display.update(snap(**fields), [])
        return capsys.readouterr().out.count("\n")

    more = {TrialState.COMPLETED: 9}
    assert shown(elapsed=1.0, best_value=0.98) == 1  # a new best, at once
    assert shown(elapsed=2.0, best_value=0.98) == 0
    assert shown(elapsed=5.9, best_value=0.98, counts=more) == 0
    assert shown(elapsed=6.0, best_value=0.98, counts=more) == 1  # other counts, after five seconds
    assert shown(elapsed=65.9, best_value=0.98, counts=more) == 0
    assert shown(elapsed=66.0, best_value=0.98, counts=more) == 1  # no news, after a minute
    assert shown(elapsed=66.1, best_value=math.nan) == 1
    assert shown(elapsed=66.2, best_value=math.nan) == 0


def test_what_the_stream_cannot_encode_is_replaced(snap: Snap, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    display = PlainDisplay()
    display.start(snap())
    display.update(snap(), [LogLine(1, "naïve")])
    assert raw.getvalue().endswith(b"[trial 1] na?ve\n")  # flushed too
