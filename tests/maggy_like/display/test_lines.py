from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from maggy_like.display import Snapshot, WorkerLine
from maggy_like.display.base import LineBuffer, LogLine
from maggy_like.display.notebook import NotebookDisplay
from maggy_like.display.plain import LIVE_SECONDS, PlainDisplay
from maggy_like.display.progress import LiveLines
from maggy_like.display.terminal import TerminalDisplay


@given(st.lists(st.integers(0, 3000)), st.integers(1, 20), st.integers(200, 5000))
def test_the_newest_lines_are_kept_within_both_bounds(sizes: list[int], max_lines: int, max_bytes: int) -> None:
    buffer = LineBuffer(max_lines, max_bytes)
    lines = [LogLine(0, "x" * size) for size in sizes]
    buffer.extend(lines)
    kept, dropped, following = buffer.read(0)
    assert kept == lines[dropped:]
    assert dropped + len(kept) == len(lines) == following
    assert len(kept) <= max_lines
    assert sum(len(line.text) for line in kept) <= max_bytes
    if dropped:  # no more than had to be
        again = lines[dropped - 1 :]
        assert len(again) > max_lines or sum(len(line.text) + 200 for line in again) > max_bytes
    assert buffer.read(following) == ([], 0, following)
    for number in range(following):
        assert buffer.read(number) == (lines[max(number, dropped) :], max(0, dropped - number), following)


def test_long_lines_take_no_more_memory_than_short_ones() -> None:
    buffer = LineBuffer(10_000, 1 << 20)
    for _ in range(10_000):
        buffer.append(LogLine(0, "\U0001f600" * 10_000))  # 40 kB each
    assert sum(len(line.text.encode()) for line in buffer) <= 1 << 20


def test_lines_of_several_threads_are_all_read() -> None:
    buffer = LineBuffer(100_000, 1 << 30)
    writers = [threading.Thread(target=lambda: [buffer.append(LogLine(0, "x")) for _ in range(2000)]) for _ in range(4)]
    read = number = 0
    for writer in writers:
        writer.start()
    while number < 8000:
        lines, _, number = buffer.read(number)
        read += len(lines)
    assert read == 8000


# -- a progress bar of a trial: one line in every display, replaced by its next state ---------------


Snap = Callable[..., Snapshot]


def bar(percent: int, trial: int = 7, rank: int | None = None) -> LogLine:
    return LogLine(trial, f"{percent}%|", rank, live=True)


def test_a_state_is_replaced_by_the_trial_s_next_line_alone(snap: Snap) -> None:
    live = LiveLines()
    assert live.take(snap(), [bar(1), bar(50, rank=1), LogLine(8, "other"), bar(2)]) == [LogLine(8, "other")]
    assert [line.text for line in live.lines.values()] == ["50%|", "2%|"]
    assert live.take(snap(), [LogLine(7, "100%|"), LogLine(None, "lost")]) == [
        LogLine(7, "100%|"),
        LogLine(None, "lost"),
    ]
    assert list(live.lines) == [(7, 1)]
    live.take(snap(), [LogLine(7, "", 1, live=True)])  # wiped away
    assert not live.lines


def test_what_a_lost_trial_showed_last_stays(snap: Snap) -> None:
    live = LiveLines()
    assert live.take(snap(workers=()), [bar(40)]) == []  # the snapshot is older than the line
    assert live.take(snap(workers=(WorkerLine(0, "a", "busy", 7),)), []) == []
    assert [line.text for line in live.take(snap(workers=()), [])] == ["40%|"]
    assert not live.lines


def test_plain_lines_have_a_bar_now_and_then_and_when_it_is_finished(
    snap: Snap, capsys: pytest.CaptureFixture[str]
) -> None:
    display = PlainDisplay()
    display.start(snap(elapsed=0.0))
    for tenth in range(int(LIVE_SECONDS * 25)):
        display.update(snap(elapsed=tenth / 10), [bar(tenth)])
    display.update(snap(elapsed=LIVE_SECONDS * 2.5), [LogLine(7, "100%|")])
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[trial 7]")]
    assert shown == ["[trial 7] 300%|", "[trial 7] 600%|", "[trial 7] 100%|"]


def test_the_terminal_has_bars_in_its_live_region(snap: Snap) -> None:
    stream = io.StringIO()
    display = TerminalDisplay(Console(file=stream, force_terminal=True, width=80, height=40, markup=False))
    display.start(snap(elapsed=0.0))
    display.update(snap(elapsed=1.0), [bar(41)])
    display.update(snap(elapsed=2.0), [bar(42)])
    assert "41%|" in stream.getvalue()
    stream.seek(0)
    stream.truncate()
    display.update(snap(elapsed=3.0), [])
    assert "41%|" not in stream.getvalue()
    assert "42%|" in stream.getvalue()
    display.finish(snap(), [])


def test_a_cell_has_a_bar_below_its_log_and_keeps_only_what_is_finished(snap: Snap) -> None:
    display = NotebookDisplay()
    display._first = snap()
    display._take(snap(), [bar(10), LogLine(8, "line"), bar(20)])
    plain = display._bundle(snap())["text/plain"]
    assert plain.endswith("[trial 8] line\n[trial 7] 20%|")
    assert "20%|" in display._bundle(snap())["text/html"]
    assert "20%|" not in display._bundle(snap(), final=True)["text/html"]
