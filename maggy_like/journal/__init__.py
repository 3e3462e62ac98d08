"""The journal: a run's truth, one JSON line an event, on any file system."""

from __future__ import annotations

from maggy_like.journal.earlier import Earlier, from_records, to_records
from maggy_like.journal.journal import Journal, read_journal, reading
from maggy_like.journal.mend import Mender
from maggy_like.journal.place import Mark, Place, place_of
from maggy_like.journal.records import (
    FORMAT_VERSION,
    RUNNING,
    Contents,
    Part,
    RunHeader,
    RunStatus,
    decode,
    encode,
    open_line,
)

__all__ = [
    "FORMAT_VERSION",
    "RUNNING",
    "Contents",
    "Earlier",
    "Journal",
    "Mark",
    "Mender",
    "Part",
    "Place",
    "RunHeader",
    "RunStatus",
    "decode",
    "encode",
    "from_records",
    "open_line",
    "place_of",
    "read_journal",
    "reading",
    "to_records",
]
