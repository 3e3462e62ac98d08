"""A trial's output: its log file and the copies, what goes to the driver, and what a flood may not do."""

from __future__ import annotations

import io
import os
import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
import tqdm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.file_systems import mark_store
from maggy_like.worker.agent import output as shipper
from maggy_like.worker.agent.output import (
    MAX_BATCH,
    MAX_END,
    MAX_LINE,
    MAX_LINES,
    MAX_ROW,
    MAX_ROWS,
    LogFile,
    LogLocation,
    LogShipper,
    Screen,
    TrialOutput,
)

LINE = b"a line like many others\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's ends; the test may close the second."""
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def test_a_flood_is_capped_in_the_file_counted_to_the_driver_and_takes_no_memory(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    size, cap = 300 << 20, 1 << 20
    output = TrialOutput(pipe[0], str(tmp_path), "00007.log", cap=cap)
    writer = subprocess.Popen(f"yes {LINE.decode().strip()!r} | head -c {size}", shell=True, stdout=pipe[1])
    os.close(pipe[1])
    os.set_blocking(pipe[0], True)
    lines = dropped = 0
    memory = psutil.Process().memory_info().rss
    while output.read():
        taken, more, _ = output.take()
        lines += len(taken)
        dropped += more
    assert writer.wait(300) == 0
    output.close()
    assert lines + dropped == size // len(LINE)
    assert psutil.Process().memory_info().rss < memory + (16 << 20)
    data = (tmp_path / "00007.log").read_bytes()
    assert len(data) < cap + MAX_END + 100
    assert data.startswith(LINE * (cap // len(LINE)))
    (note,) = re.finditer(rb"\n\.\.\. (\d+) bytes left out \.\.\.\n", data)
    assert note.start() == cap
    assert cap + int(note[1]) + len(data) - note.end() == size
    assert output.tail.splitlines() == [LINE.decode().strip()] * 20


def test_a_batch_to_the_driver_is_bounded_in_lines_and_in_size(tmp_path: Path, pipe: tuple[int, int]) -> None:
    output = TrialOutput(pipe[0], str(tmp_path), "00000.log")
    for text, kept in ((b"short\n" * 300, MAX_LINES), ((b"x" * 5000 + b"\n") * 30, MAX_BATCH // MAX_LINE)):
        for start in range(0, len(text), 50_000):
            os.write(pipe[1], text[start : start + 50_000])
            output.read()
        taken, dropped, _ = output.take()
        assert (len(taken), dropped) == (kept, text.count(b"\n") - kept)
    os.close(pipe[1])
    output.close()


def test_what_prints_for_ever_does_not_hold_up_the_end_of_a_trial(tmp_path: Path, pipe: tuple[int, int]) -> None:
    output = TrialOutput(pipe[0], str(tmp_path), "00000.log", cap=1000)
    with subprocess.Popen(["yes"], stdout=pipe[1]) as writer:
        os.close(pipe[1])
        output.read_all()
        assert writer.poll() is None
        writer.kill()
    output.close()


def test_attempts_share_the_cap_and_each_one_s_end_is_kept(tmp_path: Path) -> None:
    for attempt in (b"1", b"2"):
        file = LogFile(str(tmp_path), "log", cap=10)
        file.write(b"line\n" * 3 + b"end " + attempt + b"\n")
        file.close()
    assert (tmp_path / "log").read_bytes() == b"line\n" * 3 + b"end 1\n" + b"line\n" * 3 + b"end 2\n"


def test_a_log_file_that_cannot_be_made_costs_nothing(tmp_path: Path, pipe: tuple[int, int]) -> None:
    (tmp_path / "file").write_text("")
    output = TrialOutput(pipe[0], str(tmp_path / "file" / "logs"), "00000.log")
    os.write(pipe[1], b"hello\n")
    assert output.read()
    lines, _, _ = output.take()
    assert lines[0] == "hello"
    assert lines[1].startswith("the output of this trial cannot be written to its log file: [Errno ")
    assert output.take() == ([], 0, "")
    os.close(pipe[1])
    output.close()


def test_a_full_disk_costs_what_does_not_fit(run_script: Any, tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk: both refuse the rest of a write."""
    code = f"""
import resource, signal
from maggy_like.worker.agent.output import LogFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
file = LogFile({str(tmp_path)!r}, 'log')
file.write(b"x" * 250)
file.write(b"y" * 50)
file.close()
print(file.error)
"""
    ended = run_script(code)
    assert ended.stdout == "[Errno 27] File too large\n", ended.stderr
    assert (tmp_path / "log").read_bytes() == b"x" * 100


def test_what_is_redrawn_is_one_line_in_the_file_and_to_the_driver(tmp_path: Path, pipe: tuple[int, int]) -> None:
    output, file = TrialOutput(pipe[0], str(tmp_path), "00000.log"), tmp_path / "00000.log"
    assert not file.exists()  # nor will it, for a silent trial
    os.write(pipe[1], b"begin\n\r 10%|#  |\r 20%|## |")
    output.read()
    assert output.has_lines
    assert output.take() == (["begin"], 0, " 20%|## |")
    assert file.read_bytes() == b"begin\n 20%|## |"
    assert not output.has_lines
    assert not output.is_redrawn
    os.write(pipe[1], b"\r100%|###|")
    output.read()
    assert output.is_redrawn
    assert output.take() == ([], 0, "100%|###|")
    assert file.read_bytes() == b"begin\n100%|###|"
    os.write(pipe[1], b"\nend\n")
    os.close(pipe[1])
    output.read_all()
    assert output.take() == (["100%|###|", "end"], 0, "")
    output.close()
    assert file.read_bytes() == b"begin\n100%|###|\nend\n"


def test_a_silent_trial_leaves_no_log_file(tmp_path: Path, pipe: tuple[int, int]) -> None:
    output = TrialOutput(pipe[0], str(tmp_path / "logs"), "00000.log")
    os.close(pipe[1])
    output.read_all()
    assert output.take() == ([], 0, "")
    output.close()
    assert not (tmp_path / "logs").exists()


def test_what_another_attempt_has_written_behind_a_bar_is_not_taken_back(tmp_path: Path) -> None:
    first, second = LogFile(str(tmp_path), "log"), LogFile(str(tmp_path), "log")
    first.show(b"10%")
    second.write(b"second\n")
    first.write(b"first\n")
    for file in (first, second):
        file.close()
    assert (tmp_path / "log").read_bytes() == b"10%second\nfirst\n"


def test_a_disk_that_has_room_again_costs_what_did_not_fit(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.touch()  # no folder can be made there
    file = LogFile(str(logs), "log", cap=10 * MAX_END)
    file.write(b"first\n")
    file.write(b"second\n" * MAX_END)
    assert isinstance(file.error, OSError)
    logs.unlink()
    file.write(b"third\n")
    file.write(b"fourth\n")
    file.close()
    written = (logs / "log").read_bytes()
    assert re.match(rb"\n\.\.\. \d+ bytes left out \.\.\.\nsecond\n", written)
    assert written.endswith(b"second\nthird\nfourth\n")
    assert MAX_END - 100 < len(written) < MAX_END + 100


# -- A trial's output as a terminal shows it: bars redraw their lines, and everything else is as it was printed


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


PATIENCE = 300.0


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def url() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"memory://{name}/run/logs"
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)


class Store:
    """What a shipper writes to: told of each try, and refuses while it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses = False
        self.tries: list[str] = []
        self.changed = threading.Condition()
        self._put = shipper.put
        monkeypatch.setattr(shipper, "put", self.put)

    def put(self, url: str, data: bytes) -> None:
        self.tries.append(url.rpartition("/")[2])
        try:
            if self.refuses:
                raise PermissionError(13, "the key was withdrawn")
            self._put(url, data)
        finally:
            with self.changed:
                self.changed.notify_all()

    def until(self, reached: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, PATIENCE)


def end(shipped: LogShipper) -> None:
    shipped.finish()
    shipped._thread.join(PATIENCE)
    assert not shipped.is_busy
    shipped.close()


def content(url: str, name: str) -> bytes | None:
    fs, path = fsspec.core.url_to_fs(f"{url}/{name}")
    return fs.cat_file(path) if fs.exists(path) else None


def test_each_file_is_in_the_store_once_its_attempt_has_ended_and_here_no_more(url: str) -> None:
    shipped = LogShipper(url)
    for name, text in (("00000.log", b"one\n"), ("00001.log", b""), ("00000.2.log", b"two\n")):
        shipped.begin(name)
        if text:
            Path(shipped.folder, name).write_bytes(text)
        shipped.end(name)
    shipped.begin("00002.log")  # it runs when the worker leaves, and its file was closed
    Path(shipped.folder, "00002.log").write_bytes(b"cut off")
    shipped.end("00002.log")
    end(shipped)
    assert [content(url, f"{name}.log") for name in ("00000", "00000.2", "00001", "00002")] == [
        b"one\n", b"two\n", None, b"cut off",
    ]  # fmt: skip
    assert not Path(shipped.folder).exists()
    assert not shipped.trouble


def test_the_log_of_a_long_trial_is_copied_as_it_grows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "INTERVAL", 0.01)
    monkeypatch.setattr(shipper, "SHARE", 0)
    store, shipped = Store(monkeypatch), LogShipper(url)
    path = Path(shipped.folder, "00000.log")
    shipped.begin("00000.log")
    for lines in (b"one\n", b"one\ntwo\n"):
        path.write_bytes(lines)
        store.until(partial(lambda lines: content(url, "00000.log") == lines, lines))
    tries = len(store.tries)
    shipped.end("00000.log")
    end(shipped)
    assert len(store.tries) == tries  # it had not grown since
    assert content(url, "00000.log") == b"one\ntwo\n"


def test_what_a_store_refuses_is_kept_and_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "FIRST_PAUSE", 0.01)
    store = Store(monkeypatch)
    store.refuses = True
    shipped = LogShipper(url)
    for name in ("00000.log", "00001.log"):
        shipped.begin(name)
        Path(shipped.folder, name).write_bytes(name.encode())
        shipped.end(name)
    store.until(lambda: len(store.tries) >= 3)
    assert set(store.tries) == {"00000.log"}
    assert (
        "cannot be written (the key was withdrawn); the copy is tried again; files that are not copied stay"
        in shipped.trouble
    )
    assert shipped.folder in shipped.trouble
    store.refuses = False
    end(shipped)
    assert [content(url, name) for name in ("00000.log", "00001.log")] == [b"00000.log", b"00001.log"]
    assert not Path(shipped.folder).exists()


def test_what_never_arrives_stays_on_the_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch)
    store.refuses = True
    shipped = LogShipper(url)
    Path(shipped.folder, "00000.log").write_bytes(b"kept")
    shipped.end("00000.log")
    end(shipped)
    assert Path(shipped.folder, "00000.log").read_bytes() == b"kept"


def test_a_store_that_does_not_answer_in_time_is_told_of(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(shipper, "put", lambda *_: answers.wait(PATIENCE))
    shipped = LogShipper(url)
    Path(shipped.folder, "00000.log").write_bytes(b"kept")
    shipped.end("00000.log")
    shipped.finish()
    assert shipped.is_busy
    shipped.give_up()
    assert f"does not answer in time; files that are not copied stay in {shipped.folder}" in shipped.trouble
    shipped.close()
    assert Path(shipped.folder, "00000.log").exists()
    answers.set()
    shipped._thread.join(PATIENCE)
    shipped.close()
    assert not Path(shipped.folder).exists()


def task(logs: str, copies: str = "") -> WorkerTask:
    return WorkerTask("tcp://x:1", b"", "run", b"", (), (), (), store="", logs=logs, log_copies=copies)


def test_logs_are_written_where_the_reader_looks_for_them_if_the_worker_sees_it(tmp_path: Path, url: str) -> None:
    logs = tmp_path / "run" / "logs"
    for written in (str(logs), f"file://{logs}"):
        place = LogLocation(task(written))
        assert (place.folder, place.begin(3, 2, 0), place.is_busy) == (str(logs), "00003.log", False)
    mark_store(f"file://{logs}", "run")
    assert LogLocation(task(str(logs), url)).folder == str(logs)
    mark_store(f"file://{logs}", "another")  # a folder of that name on another machine
    for written, copies in ((str(logs), url), (url, "")):
        place = LogLocation(task(written, copies))
        assert place.folder != str(logs)
        assert [place.begin(3, 1, 0), place.begin(3, 2, 0), place.begin(3, 2, 1)] == [
            "00003.log", "00003.2.log", "00003-1.2.log",
        ]  # fmt: skip
        Path(place.folder, "00003.2.log").write_bytes(b"hello")
        place.end("00003.2.log")
        place.finish()
        assert place._shipper is not None
        place._shipper._thread.join(PATIENCE)
        place.close()
        assert content(url, "00003.2.log") == b"hello"
        assert not Path(place.folder).exists()
