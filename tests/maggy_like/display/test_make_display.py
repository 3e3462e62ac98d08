from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from maggy_like.display import LogLine, SilentDisplay, Snapshot, make_display, notebook
from maggy_like.display.notebook import NotebookDisplay
from maggy_like.display.plain import PlainDisplay
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.errors import ConfigError


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


def test_a_kernel_gets_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, shell=SimpleNamespace(kernel=object()), tty=True)
    monkeypatch.setattr(notebook, "display", lambda *args, **options: None)
    display = make_display(True)
    monkeypatch.undo()
    assert isinstance(display, NotebookDisplay)


def test_a_terminal_gets_a_live_region(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, shell=SimpleNamespace(), tty=True)  # IPython in a terminal has no kernel
    display = make_display(True)
    monkeypatch.undo()
    assert isinstance(display, TerminalDisplay)


def test_a_terminal_gets_lines_where_trials_run_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger asks there."""
    place(monkeypatch, tty=True)
    display = make_display(True, with_trials=True)
    asked_for = make_display("terminal", with_trials=True)
    monkeypatch.undo()
    assert (type(display), type(asked_for)) == (PlainDisplay, TerminalDisplay)


@pytest.mark.parametrize(
    "where", [{}, {"tty": True, "term": "dumb"}, {"tty": True, "encoding": "ascii"}, {"encoding": None}]
)
def test_everything_else_gets_lines(monkeypatch: pytest.MonkeyPatch, where: dict[str, object]) -> None:
    place(monkeypatch, **where)  # type: ignore[arg-type]
    display = make_display(True)
    monkeypatch.undo()
    assert isinstance(display, PlainDisplay)


def test_false_shows_nothing(capsys: pytest.CaptureFixture[str], snap: Callable[..., Snapshot]) -> None:
    display = make_display(False)
    assert isinstance(display, SilentDisplay)
    display.start(snap())
    display.update(snap(), [LogLine(1, "x")])
    display.finish(snap(), [])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("notebook", NotebookDisplay),
        ("terminal", TerminalDisplay),
        ("plain", PlainDisplay),
        ("silent", SilentDisplay),
    ],
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
