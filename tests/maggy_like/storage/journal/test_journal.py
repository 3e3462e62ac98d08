"""Records and the damage that is seen in them."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.errors import JournalError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import (
    FORMAT_VERSION,
    Journal,
    Part,
    RunHeader,
    RunStatus,
    backend_of,
    decode,
    decode_each,
    encode,
    read_header,
    read_journal,
)
from maggy_like.storage.journal.journal import LocalBackend
from maggy_like.storage.journal.records import _checksum
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
from optimizers.core.trial import Failure, FailureKind, TrialState

HEADER = RunHeader(FORMAT_VERSION, "run", 1.5, {"x": {"type": "float"}}, "random", ["max"], [], 0, 27)
EVENTS: list[Event] = [
    TrialCreated(0, {"x": 0.5, "act": "relu", "flag": True, "none": None}, 0),
    AttemptStarted(0, 1, 3, 27, 12.25, {"x": 0.5, "act": "relu", "flag": True, "none": None}, 0),
    Measured(0, 1, "loss", {"loss": ([1, 2, 3], [0.1, math.inf, -math.inf]), "lr": ([2], [0.1])}),
    CheckpointSaved(0, 1, 3, "00000/1-3.pkl"),
    AttemptEnded(0, 1, TrialState.FAILED, 13.0, failure=Failure(FailureKind.EXCEPTION, "boom", "Traceback")),
    AttemptEnded(0, 2, TrialState.COMPLETED, 14.0, 0.25, {"time": math.inf, "crc": 1.0, "n": 2.0}),
]
LINES = encode([HEADER, *EVENTS], 1).splitlines(keepends=True)


def read(*lines: bytes) -> tuple[list[Event], list[str]]:
    contents = decode([Part("journal.jsonl", b"".join(lines))])
    return contents.events, contents.damage


def test_reads_back_what_was_written() -> None:
    assert read(*LINES) == (EVENTS, [])


def test_a_number_that_nobody_writes_is_damage_and_no_error() -> None:
    body = LINES[2][: LINES[2].rfind(b',"n":')] + b',"n":' + b"9" * 5000
    events, damage = read(*LINES[:2], body + _checksum(body) + b"\n", *LINES[3:])
    assert events == [EVENTS[0], *EVENTS[2:]]
    assert damage[0].startswith("journal.jsonl, line 3 is damaged")


def test_nan_survives() -> None:
    event = Measured(0, 1, "loss", {"loss": ([1], [math.nan])})
    (back,), _ = read(LINES[0], encode([event], 2))
    assert isinstance(back, Measured)
    assert math.isnan(back.columns["loss"][1][0])


@pytest.mark.parametrize("number", [2, 4, 7])
def test_a_flipped_bit_is_seen_anywhere_and_costs_that_line(number: int) -> None:
    line = LINES[number - 1]
    for backend in range(len(line) - 1):
        for bit in range(8):
            damaged = line[:backend] + bytes([line[backend] ^ 1 << bit]) + line[backend + 1 :]
            events, damage = read(*LINES[: number - 1], damaged, *LINES[number:])
            assert events == EVENTS[: number - 2] + EVENTS[number - 1 :]
            assert damage[0].startswith(f"journal.jsonl, line {number} is damaged")


@pytest.mark.parametrize("name", ["file:///etc/x.pkl", "../0/1-1.pkl", "00001/1-3.pkl", "00000/2-3.pkl"])
def test_a_state_that_its_attempt_cannot_have_saved_is_damage(name: str) -> None:
    """A journal that somebody has edited, checksums and all, makes no worker read or remove what is no state of it."""
    edited = msgspec.structs.replace(EVENTS[3], name=name)
    contents = decode([Part("j", encode([HEADER, *EVENTS[:3], edited, *EVENTS[4:]], 1))])
    assert contents.events == [*EVENTS[:3], *EVENTS[4:]]
    assert contents.damage == ["j, line 5 is damaged"]


def test_a_damaged_newline_costs_nothing() -> None:
    joined = LINES[2][:-1] + b"\x00" + LINES[3]
    assert read(*LINES[:2], joined, *LINES[4:]) == (
        EVENTS,
        ["journal.jsonl, line 3 is damaged; 2 whole records in it are kept"],
    )
    events, damage = read(LINES[0][:-1] + b"\x8a" + LINES[1], *LINES[2:-1], LINES[-1][:-1] + b"\x0b")
    assert events == EVENTS
    assert [text.partition(" is ")[0] for text in damage] == ["journal.jsonl, line 1", "journal.jsonl, line 6"]


def test_lines_that_were_cut_out_are_missed() -> None:
    events, damage = read(*LINES[:2], *LINES[4:])
    assert events == [EVENTS[0], *EVENTS[3:]]
    assert damage == ["2 records are missing before journal.jsonl, line 3"]


def test_a_torn_last_line_is_left_out_and_told() -> None:
    events, damage = read(*LINES[:-1], LINES[-1][:20])
    assert events == EVENTS[:-1]
    assert damage == ["journal.jsonl, line 7 is torn"]


def test_parts_are_one_journal_and_a_lost_one_is_told() -> None:
    parts = [Part(f"part {n}", b"".join(LINES[n : n + 2])) for n in (0, 2, 4, 6)]
    assert decode(parts).events == EVENTS
    contents = decode([parts[0], *parts[2:]])
    assert contents.events == [EVENTS[0], *EVENTS[3:]]
    assert contents.damage == ["2 records are missing before part 4, line 1"]


def test_what_was_left_over_as_a_mended_journal_took_its_place_is_passed_over() -> None:
    mended = encode([HEADER, *EVENTS[:2]], 8)
    contents = decode([Part("a", mended), Part("b", b"".join(LINES[3:]))])
    assert contents.events == EVENTS[:2]
    assert contents.last == 10
    assert contents.damage == ["b has 4 records from before a repair"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-9] + (b"1" if line[-9:-8] == b"0" else b"0") + line[-8:],
        lambda line: b"",
        lambda line: b"{}\n",
    ],
)
def test_without_its_header_a_journal_is_refused(damage: object) -> None:
    with pytest.raises(JournalError, match="line 1 must be the header of a run, and is damaged"):
        read(damage(LINES[0]), *LINES[1:])  # type: ignore[operator]


def test_another_version_is_refused() -> None:
    old = msgspec.json.encode(msgspec.structs.replace(HEADER, version=1)) + b"\n"
    with pytest.raises(JournalError, match=f"line 1 has format 1; this version of maggy_like reads {FORMAT_VERSION}"):
        read(old)
    with pytest.raises(JournalError, match="has format 99"):
        read(encode([msgspec.structs.replace(HEADER, version=99)], 1))


def test_an_empty_file_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(JournalError, match="is empty"):
        read_journal(backend_of(str(tmp_path)))


def test_the_lock_ends_with_the_run_though_a_process_that_was_forked_meanwhile_lives(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.hold()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[backend._lock]
    ) as process:
        backend.release()
        backend = LocalBackend(tmp_path)
        backend.hold()
        backend.release()
        process.communicate(b"\n")


def test_a_lock_that_cannot_be_signed_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.ftruncate", fail)
        with pytest.raises(OSError, match="No space"):
            LocalBackend(tmp_path).hold()
    backend = LocalBackend(tmp_path)
    backend.hold()
    backend.release()


@pytest.mark.parametrize("can_cut", [True, False])
def test_what_an_interrupted_append_left_is_cut_off_by_the_next(
    can_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend(tmp_path)
    backend.hold()
    backend.append(b"first\n")

    def write_a_part(fd: int, data: bytes) -> int:
        if len(data) < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:3])

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_a_part)
        if not can_cut:
            patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="No space"):
            backend.append(b"second\n")
    assert (tmp_path / "journal.jsonl").read_bytes() == (b"first\n" if can_cut else b"first\nsec")
    backend.append(b"third\n")
    backend.release()
    assert (tmp_path / "journal.jsonl").read_bytes() == b"first\nthird\n"


def test_a_journal_is_the_user_s_alone(tmp_path: Path) -> None:
    journal = Journal(backend_of(str(tmp_path / "run")))
    journal.begin(HEADER)
    journal.replace(HEADER, EVENTS)
    journal.close()
    files = sorted((tmp_path / "run").iterdir())
    assert [file.name for file in files] == ["journal.damaged-1.jsonl", "journal.jsonl", "journal.lock"]
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "run", *files)] == [0o700, *[0o600] * 3]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    block=st.integers(1, 700),
    order=st.lists(st.integers(0, len(LINES) - 1), max_size=8),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 300),
)
def test_where_a_block_ends_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    order: list[int],
    flips: list[tuple[int, int]],
    cut: int,
) -> None:
    """Lines in any order, with damaged bytes and a torn end, read in blocks of any size."""
    data = bytearray(b"".join([LINES[0], *(LINES[number] for number in order or range(1, len(LINES)))]))
    for at, flip in flips:
        data[at % len(data)] ^= flip
    data = data[: max(1, len(data) - cut)]
    (tmp_path / "journal.jsonl").write_bytes(data)
    whole = [Part(str(tmp_path / "journal.jsonl"), bytes(data))]
    monkeypatch.setattr("maggy_like.storage.journal.journal.BLOCK", block)
    if refusal(lambda: decode(whole)):
        assert refusal(lambda: read_journal(backend_of(str(tmp_path)))) == refusal(lambda: decode(whole))
        return
    expected = decode(whole)
    assert read_journal(backend_of(str(tmp_path))) == expected
    parts = list(backend_of(str(tmp_path)).read())
    assert b"".join(part.data for part in parts) == data
    assert all(part.data.endswith(b"\n") for part in parts[:-1])
    taken: list[Event] = []
    for contents in decode_each(parts):
        taken += contents.events
        contents.events = []
    assert (taken, contents.damage, contents.last) == (expected.events, expected.damage, expected.last)


def refusal(read: Callable[[], object]) -> str:
    """What a journal is refused with; empty if it is read."""
    try:
        read()
    except JournalError as error:
        return str(error)
    return ""


def test_a_header_is_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b"".join([*LINES[:3], b"\xff" * 20_000]))
    monkeypatch.setattr("maggy_like.storage.journal.journal.BLOCK", 400)
    read = []
    parts = LocalBackend.read

    def count(backend: LocalBackend) -> Iterator[Part]:
        for part in parts(backend):
            read.append(part)
            yield part

    monkeypatch.setattr(LocalBackend, "read", count)
    assert read_header(backend_of(str(tmp_path))) == HEADER
    assert len(read) == 1


def test_what_cannot_be_read_in_its_midst_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(backend: LocalBackend) -> Iterator[Part]:
        yield Part("journal.jsonl", b"".join(LINES[:3]))
        raise OSError("Input/output error")

    monkeypatch.setattr(LocalBackend, "read", read)
    with pytest.raises(JournalError, match="cannot be read: Input/output error; fix the access"):
        read_journal(backend_of(str(tmp_path)))


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_while_a_driver_has_the_run_does_not_change_for_how_long(jump: float) -> None:
    records = [
        HEADER,
        RunStatus(Ending.RUNNING, 100.0),
        RunStatus(Ending.COMPLETED, 110.0 + jump, 10.0),
        RunStatus(Ending.RUNNING, 120.0),
        RunStatus(Ending.COMPLETED, 125.0, 5.0),
    ]
    assert decode([Part("journal", encode(records, 1))]).earlier_seconds == 10.0
