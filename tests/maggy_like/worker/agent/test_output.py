"""A trial's output: its log file, what goes to the driver, and what a flood may not do."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from maggy_like.worker.agent.log_file import MAX_END, LogFile
from maggy_like.worker.agent.output import MAX_BATCH, MAX_LINE, MAX_LINES, TrialOutput

pytestmark = pytest.mark.slow

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
from maggy_like.worker.agent.log_file import LogFile
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
    logs.touch()  # no directory can be made there
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
