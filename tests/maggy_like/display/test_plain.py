"""Which display a place gets, and plain lines, which any place can show."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like import Float, lagom
from maggy_like.display import LogLine, SilentDisplay, Snapshot, make_display, notebook
from maggy_like.display.notebook import NotebookDisplay
from maggy_like.display.plain import PlainDisplay
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from optimizers.core.trial import TrialState


def place(
    monkeypatch: pytest.MonkeyPatch,
    *,
    shell: object = None,
    tty: bool = False,
    encoding: str | None = "utf-8",
    term: str = "xterm",
) -> None:
    stdout = SimpleNamespace(isatty=lambda: tty, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setenv("TERM", term)


@pytest.mark.parametrize(
    ("where", "progress", "with_trials", "kind"),
    [
        ({"shell": SimpleNamespace(kernel=object()), "tty": True}, True, False, NotebookDisplay),
        ({"shell": SimpleNamespace(), "tty": True}, True, False, TerminalDisplay),  # IPython in a terminal: no kernel
        ({"tty": True}, True, True, PlainDisplay),  # a debugger asks there
        ({"tty": True}, "terminal", True, TerminalDisplay),
        ({}, True, False, PlainDisplay),
        ({"tty": True, "term": "dumb"}, True, False, PlainDisplay),
        ({"tty": True, "encoding": "ascii"}, True, False, PlainDisplay),
        ({"encoding": None}, True, False, PlainDisplay),
    ],
)
def test_a_place_gets_the_display_that_it_can_show(
    monkeypatch: pytest.MonkeyPatch, where: dict[str, Any], progress: bool | str, with_trials: bool, kind: type
) -> None:
    place(monkeypatch, **where)
    monkeypatch.setattr(notebook, "display", lambda *args, **options: None)
    display = make_display(progress, with_trials=with_trials)
    monkeypatch.undo()
    assert type(display) is kind


def test_false_shows_nothing(capsys: pytest.CaptureFixture[str], snap: Callable[..., Snapshot]) -> None:
    display = make_display(False)
    assert isinstance(display, SilentDisplay)
    display.start(snap())
    display.update(snap(), [LogLine(1, "x")])
    display.finish(snap(), [])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("notebook", NotebookDisplay), ("terminal", TerminalDisplay), ("plain", PlainDisplay), ("silent", SilentDisplay)],
)
def test_by_name(name: str, kind: type) -> None:
    assert type(make_display(name)) is kind


@pytest.mark.parametrize(
    ("name", "hint"), [("terminl", "did you mean 'terminal'"), ("?", "True, False or one of 'notebook', ")]
)
def test_an_unknown_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        make_display(name)


def test_plain_lines_load_neither_rich_nor_ipython(run_script: Callable[..., SimpleNamespace]) -> None:
    done = run_script(
        "import sys; from maggy_like.display import make_display; make_display(True); make_display(False)\n"
        "print({'rich', 'IPython'} & set(sys.modules))"
    )
    assert done.stdout == "set()\n", done.stderr


# -- plain lines ------------------------------------------------------------------------------------


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


class Tee:
    """A stream of a program that copies its output: it has only ``write``."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


class Gone:
    """A pipe whose reader has ended, as after ``| head``."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def greets(x: float) -> float:
    print("hello")
    return x


@pytest.mark.parametrize("progress", [True, "plain"])
@pytest.mark.parametrize("kind", [Tee, lambda: None])
def test_an_output_that_has_only_write_or_is_missing_stops_no_search(
    progress: bool | str, kind: Callable[[], Tee | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    options: dict[str, Any] = {"optimizer": "random", "direction": "max", "n_trials": 2, "engine": "inline"}
    stream = kind()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        result = lagom(greets, {"x": Float(0, 1)}, directory=tmp_path, progress=progress, **options)
    assert [trial.state for trial in result.trials] == [TrialState.COMPLETED] * 2
    assert not caplog.messages
    assert stream is None or ("hello" in stream.text and "best value" in stream.text)


def test_an_output_that_nobody_reads_is_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"optimizer": "random", "direction": "max", "n_trials": 2, "engine": "inline"}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Gone())
        result = lagom(lambda x: x, {"x": Float(0, 1)}, directory=tmp_path, progress="plain", **options)
    assert len(result.trials) == 2
    assert caplog.messages == ["nothing more is shown, and the search continues: [Errno 32] Broken pipe"]
    assert caplog.records[0].exc_info is None
