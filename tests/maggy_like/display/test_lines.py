from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from maggy_like.display.base import LineBuffer, LogLine


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
