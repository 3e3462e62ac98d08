"""What is read of a log while it grows."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.command_line.commands import LogTail
from maggy_like.protocol.state_names import log_name
from maggy_like.storage.run_paths import RunPaths
from maggy_like.worker.agent.output import LogFile


def tail_of(folder: Path) -> LogTail:
    return LogTail(RunPaths(folder, (folder / "checkpoints").as_uri()), 3, 0)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LogFile]:
    with contextlib.closing(LogFile(str(tmp_path / "logs"), log_name(3))) as file:
        yield file


def test_a_look_reads_what_was_added_alone(file: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail, read = tail_of(tmp_path), [0]
    cat_file = LocalFileSystem.cat_file

    def counted(fs: Any, *args: Any, **kwargs: Any) -> bytes:
        data = bytes(cat_file(fs, *args, **kwargs))
        read[0] += len(data)
        return data

    monkeypatch.setattr(LocalFileSystem, "cat_file", counted)
    assert tail.look(1, is_over=False) == []
    file.write(b"a line\n" * 100_000)
    assert len(tail.look(1, is_over=False)) == 100_000
    read[0] = 0
    for number in range(20):
        file.write(f"line {number}\n".encode())
        assert tail.look(1, is_over=False) == [f"line {number}\n"]
        assert tail.look(1, is_over=False) == []
    assert read[0] < 1000


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(["", "ab", "é", "abab"]), max_size=3)), max_size=12))
def test_each_line_is_shown_once_whatever_is_redrawn_behind_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, list[str]]]
) -> None:
    """Rows that are redrawn stand behind the last line, and may be several: these alone may be shown or not."""
    folder = tmp_path_factory.mktemp("run")
    file, tail = LogFile(str(folder / "logs"), log_name(3)), tail_of(folder)
    finished: list[str] = []
    shown: list[str] = []
    for is_live, rows in steps:
        if is_live:
            file.show("  ".join(rows).encode())
        else:
            finished += [f"{row}\n" for row in rows]
            file.write("".join(f"{row}\n" for row in rows).encode())
        shown += tail.look(1, is_over=False)
        assert shown == finished
    file.show(b"")
    file.close()
    assert shown + tail.look(1, is_over=True) == finished


def test_rows_that_were_shown_and_are_redrawn_cost_no_later_line(file: LogFile, tmp_path: Path) -> None:
    tail = tail_of(tmp_path)
    file.write(b"one\n")
    file.show(b"bar 1\nbar 2")  # two bars
    assert tail.look(1, is_over=False) == ["one\n", "bar 1\n"]
    file.write(b"bar 1 done\nbar 2 done\nthree\n")
    assert tail.look(1, is_over=False) == ["bar 2 done\n", "three\n"]
    file.write(b"four\n")
    assert tail.look(1, is_over=False) == ["four\n"]


def test_files_of_several_attempts_in_an_object_store_are_read_in_order(
    object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.items():
        monkeypatch.setenv(name, value)
    url = f"s3://runs/{uuid.uuid4().hex}"
    fs, tail = fsspec.filesystem("s3"), LogTail(RunPaths(url, f"{url}/checkpoints"), 3, 0)
    fs.pipe_file(f"{url}/logs/{log_name(3)}", b"one\n")
    assert tail.look(1, is_over=False) == ["one\n"]
    fs.pipe_file(f"{url}/logs/{log_name(3)}", b"one\ntwo\nthr")
    assert tail.look(1, is_over=False) == ["two\n"]
    fs.pipe_file(f"{url}/logs/{log_name(3)}", b"one\ntwo\nthree\n")
    assert tail.look(2, is_over=False) == ["three\n"]
    fs.pipe_file(f"{url}/logs/{log_name(3, attempt=2)}", b"again\nand")
    assert tail.look(2, is_over=False) == ["again\n"]
    assert tail.look(2, is_over=True) == ["and"]
