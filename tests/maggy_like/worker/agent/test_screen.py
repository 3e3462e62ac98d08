"""A trial's output as a terminal shows it: bars redraw their lines, and everything else is as it was printed."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import tqdm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.worker.agent.screen import MAX_ROW, MAX_ROWS, Screen


def shown(*chunks: bytes) -> tuple[list[bytes], list[bytes]]:
    """The finished lines, and the live ones."""
    screen = Screen()
    finished = b"".join(map(screen.feed, chunks))
    return finished.splitlines(), screen.live


@pytest.mark.parametrize(
    ("printed", "finished", "live"),
    [
        (b"one\ntwo\nthr", [b"one", b"two"], [b"thr"]),
        (b"\n  a\n\n", [b"", b"  a", b""], []),
        (b"windows\r\nlines\r\n", [b"windows", b"lines"], []),
        (b"\r 10%|#  |", [], [b" 10%|#  |"]),
        (b"\r 10%|#  |\r 20%|## |", [], [b" 20%|## |"]),
        (b"\r 10%|#  |\r100%|###|\nnext", [b"100%|###|"], [b"next"]),
        (b"\rlong state\rshort     \nnext\n", [b"short", b"next"], []),
        (b"\rwiped\r     \rnext\n", [b"next"], []),
        (b"\rwiped\r     \n", [], []),
        (b"text\rstate", [], [b"state"]),
        (b"\r\x1b[32m10%\x1b[0m\r\x1b[32m20%\x1b[0m\n", [b"\x1b[32m20%\x1b[0m"], []),
        (b"\router 0%\n\rinner 1\x1b[A\n\rinner 2\x1b[A", [b"outer 0%"], [b"inner 2"]),
        (b"\router 0%\n\rinner 1\x1b[A\router 1%\n\rinner 2\x1b[A", [b"outer 0%"], [b"outer 1%", b"inner 2"]),
        (b"\ra 0%\n\rb 1\x1b[A\ra 1%\n\r       \x1b[A\ra 2%\ndone\n", [b"a 0%", b"a 2%", b"done"], []),
        (b"\x1b[999Aup\x1b[999Bdown", None, [b"up", b"down"]),
    ],
)  # fmt: skip
def test_a_row_is_replaced_until_it_is_finished(
    printed: bytes, finished: list[bytes] | None, live: list[bytes]
) -> None:
    for chunks in ([printed], [bytes([byte]) for byte in printed]):
        lines, rows = shown(*chunks)
        assert rows == live
        if finished is not None:
            assert [line.rstrip(b"\r") for line in lines] == finished


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("leave", [True, False])
def test_the_nested_bars_of_tqdm_stay_a_line_each(leave: bool) -> None:
    stream, screen = Terminal(), Screen()
    lines, states = [], []
    for _ in tqdm.tqdm(range(3), desc="outer", file=stream, mininterval=0, ascii=True):
        for _ in tqdm.tqdm(range(4), desc="inner", file=stream, mininterval=0, ascii=True, leave=leave):
            lines += screen.feed(stream.getvalue().encode()).splitlines()
            stream.seek(0)
            stream.truncate()
            states.append([line[:6] for line in screen.live])
    lines += screen.feed(stream.getvalue().encode() + b"after\n").splitlines() + screen.flush().splitlines()
    assert states[-1] == [b"outer:", b"inner:"]
    texts = [line.decode() for line in lines]
    assert len(texts) <= 2 + 3 * leave + 1  # of the outer one its first state too: nobody knew that it would be redrawn
    assert [text for text in texts if re.match("outer: 100%.* 3/3 ", text)]
    assert texts[-1] == "after"
    assert not [text for text in texts if "\x1b" in text or "\r" in text]


PIECES = st.lists(
    st.sampled_from([b"a", b"bc ", b"\n", b"\r", b"\x1b[A", b"\x1b[2B", b"\x1b[31m", b"\xc3", b"\r\n"]), max_size=40
)


@settings(max_examples=examples(200))
@given(PIECES, st.integers(1, 5))
def test_however_output_is_cut_into_chunks_the_lines_are_the_same(pieces: list[bytes], size: int) -> None:
    printed = b"".join(pieces)
    screen, other = Screen(), Screen()
    whole = screen.feed(printed)
    parts = b"".join(other.feed(printed[start : start + size]) for start in range(0, len(printed), size))
    assert (whole, screen.live) == (parts, other.live)
    if not {b"\r", b"\r\n", b"\x1b[A", b"\x1b[2B"} & set(pieces):
        assert (whole + b"".join(screen.live)).split() == printed.split()


def test_a_program_that_moves_about_or_ends_no_line_fills_no_memory() -> None:
    screen: Any = Screen()
    for _ in range(100):
        screen.feed(b"\x1b[99B" * 100 + b"x" * 1000 + b"\x1b[99A" * 100)
        screen.feed(b"\r" + b"y" * MAX_ROW)
    assert len(screen._rows) <= 3 * MAX_ROWS
    assert max(map(len, screen._rows)) <= 3 * MAX_ROW
