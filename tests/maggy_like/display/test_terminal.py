from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from maggy_like.display import LogLine, Snapshot, WorkerLine
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.protocol.endings import Ending
from optimizers.core.trial import TrialState

Snap = Callable[..., Snapshot]
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def console() -> Console:
    return Console(
        file=io.StringIO(), width=100, height=40, force_terminal=True, markup=False, record=True, _environ={}
    )


@pytest.fixture
def display(console: Console, snap: Snap) -> Iterator[TerminalDisplay]:
    display = TerminalDisplay(console)
    yield display
    display.finish(snap(), [])  # gives the streams back where a test fails


def drawn(console: Console) -> str:
    """What was drawn since the last call, without styles."""
    return console.export_text()


def test_the_region(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap(elapsed=0.0, counts={}))
    drawn(console)
    display.update(snap(), [])
    rule, headline, bar, counts, best, busy, idle = drawn(console).splitlines()
    assert set(rule) == {"─"}
    assert headline.startswith("digits  asha, max accuracy ")
    assert headline.endswith(" searching  0:30, about 0:45 left")
    assert len(bar) == 100
    assert bar.count("━") == round(94 * 12 / 30)
    assert bar.endswith("─ 12/30")
    assert counts == "4 completed  1 stopped  6 paused  1 failed  3 running"
    assert best == "best 0.973 (trial 4)  lr=0.01, act=<relu>"
    assert busy.split() == ["worker", "0", "trial", "7", "━━━━────────", "3/9", "0.91", "0:12"]
    assert idle.split() == ["worker", "1", "idle"]


def test_nothing_yet(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap(n_trials=None, counts={}, best_trial=None, best_value=None, best_config=None, workers=()))
    assert [line.rstrip() for line in drawn(console).splitlines()[2:]] == [
        "0 trials",
        "no trial yet",
        "starting workers",
    ]


def test_without_a_bound_the_bar_runs_to_the_timeout(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap(n_trials=None, timeout=60.0))
    headline, bar = drawn(console).splitlines()[1:3]
    assert headline.endswith("0:30, at most 0:30 left")
    assert bar.count("━") == (100 - len(" 12 trials")) // 2


def test_log_lines_come_above_and_unread(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap())
    drawn(console)
    long = "word " * 50
    display.update(snap(), [LogLine(7, "[red]x[/red] :smile: \x1b[2J"), LogLine(None, "lost"), LogLine(7, long)])
    lines = drawn(console).splitlines()
    assert lines[:3] == ["[trial 7] [red]x[/red] :smile:", "lost", f"[trial 7] {long.rstrip()}"]
    assert lines[4].startswith("digits")


def test_draws_five_times_a_second(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap(elapsed=0.0))
    drawn(console)
    display.update(snap(elapsed=0.1), [])
    assert drawn(console) == ""
    display.update(snap(elapsed=0.2), [])
    assert "digits" in drawn(console)


def test_many_workers(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    workers = tuple(WorkerLine(i, f"host{i % 2}", "busy", i, 1, 0, None, float(i)) for i in range(20))
    display.start(snap(workers=(*workers, WorkerLine(20, "host0", "lost"))))
    lines = drawn(console).splitlines()[5:]
    assert [line.split()[:3] for line in lines[:12]] == [["worker", str(i), f"host{i % 2}"] for i in range(8, 20)]
    assert lines[12].rstrip() == "and 9 more (8 busy, 1 lost)"


@pytest.mark.parametrize("height", [8, 24])
def test_the_region_fits_the_screen(snap: Snap, height: int) -> None:
    console = Console(file=io.StringIO(), width=60, height=height, force_terminal=True, record=True)
    display = TerminalDisplay(console)
    display.start(snap(workers=tuple(WorkerLine(i, "h", "busy", i) for i in range(99))))
    lines = drawn(console).splitlines()
    assert len(lines) < height
    assert lines[-1].startswith("and ")
    display.finish(snap(), [])


def test_finish_leaves_a_summary_and_the_streams(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    stdout = sys.stdout
    display.start(snap())
    redirected = sys.stdout  # as a handler of the caller's would hold it
    print("half a [line]", end="", file=redirected)
    drawn(console)
    display.finish(snap(phase=Ending.COMPLETED, counts={TrialState.COMPLETED: 30}), [LogLine(3, "bye")])
    text = drawn(console)
    assert "half a [line]" in text
    assert text.endswith(
        "digits: completed after 0:30, 30 trials (30 completed)\n"
        "best accuracy 0.973 (trial 4): lr=0.01, act=<relu>\n"
        "files in runs/digits-1\n"
    )
    assert sys.stdout is stdout
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count(HIDE) == console.file.getvalue().count(SHOW) == 1


def test_the_terminal_is_given_back_when_finish_is_never_called(console: Console, snap: Snap) -> None:
    stdout = sys.stdout
    display = TerminalDisplay(console)
    display.start(snap())
    assert sys.stdout is not stdout
    del display
    gc.collect()
    assert sys.stdout is stdout
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count(HIDE) == console.file.getvalue().count(SHOW) == 1


def test_a_second_search_writes_plain_lines(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap())
    second = TerminalDisplay(console)
    second.start(snap(name="second"))
    drawn(console)
    second.update(snap(name="second"), [LogLine(2, "from the second [red]")])
    text = drawn(console)
    assert text.startswith("[trial 2] from the second [red]\n")
    assert text.count("digits") == 1  # the first one's region is still below
    second.finish(snap(name="second", phase=Ending.COMPLETED), [])
    assert "second: completed after" in drawn(console)
    display.update(snap(elapsed=40.0), [])
    assert "digits" in drawn(console)


def test_the_curve_of_the_best_has_a_scale(display: TerminalDisplay, console: Console, snap: Snap) -> None:
    display.start(snap(elapsed=10.0, best_value=0.5))
    assert "█" not in drawn(console)
    display.update(snap(elapsed=20.0, best_value=0.75), [])
    display.update(snap(elapsed=50.0, best_value=1.0), [])
    assert f"0.5 {'▁' * 9}{'▅' * 30}█ 1  0:10 to 0:50" in drawn(console)
