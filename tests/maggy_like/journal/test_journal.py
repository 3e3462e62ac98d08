from __future__ import annotations

import math
from pathlib import Path

import pytest

from maggy_like.errors import JournalError
from maggy_like.journal import Journal, RunHeader, read_journal
from optimizers.events import AttemptEnded, AttemptStarted, CheckpointSaved, Measured, TrialCreated
from optimizers.trial import Failure, TrialState

HEADER = RunHeader(1, "run", 1.5, {"x": {"type": "float"}}, "random", "max", None, 0, 27)
EVENTS = [
    TrialCreated(0, {"x": 0.5, "act": "relu", "flag": True, "none": None}, 0),
    AttemptStarted(0, 1, 3, 27, 12.25),
    Measured(0, 1, "loss", {"loss": ([1, 2, 3], [0.1, math.inf, -math.inf]), "lr": ([2], [0.1])}),
    CheckpointSaved(0, 1, 3, "file:///somewhere/1-3.pkl"),
    AttemptEnded(0, 1, TrialState.FAILED, 13.0, failure=Failure("exception", "boom", "Traceback")),
    AttemptEnded(0, 2, TrialState.COMPLETED, 14.0, 0.25, {"time": math.inf}),
]


def written(path: Path) -> None:
    journal = Journal(path)
    journal.begin(HEADER)
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:])
    journal.close()


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    header, events, size = read_journal(path)
    assert header == HEADER
    assert events == EVENTS
    assert size == path.stat().st_size


def test_nan_survives(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.begin(HEADER)
    journal.append([Measured(0, 1, "loss", {"loss": ([1], [math.nan])})])
    journal.close()
    event = read_journal(path)[1][0]
    assert isinstance(event, Measured)
    assert math.isnan(event.columns["loss"][1][0])


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_left_out_and_repaired(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    path.write_bytes(path.read_bytes()[:-cut])
    _, events, size = read_journal(path)
    assert events == EVENTS[:-1]
    journal = Journal(path)
    journal.repair(size)
    journal.append(EVENTS[-1:])
    journal.close()
    assert read_journal(path)[1] == EVENTS


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3][:10] + b"#" + lines[3][11:]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(JournalError, match="line 4 is damaged"):
        read_journal(path)


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with pytest.raises(JournalError, match="in use by another process"):
        Journal(path)
    journal.close()
    Journal(path).close()


def test_a_foreign_version_and_an_absent_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with pytest.raises(JournalError, match="no journal at"):
        read_journal(path)
    path.write_text('{"type":"run","version":99,"name":"x","created":0,"space":{},"optimizer":"","direction":"max",'
                    '"metric":null,"seed":0,"max_budget":1}\n')  # fmt: skip
    with pytest.raises(JournalError, match="format 99; this version reads 1"):
        read_journal(path)
