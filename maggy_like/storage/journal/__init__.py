"""The journal: the record of a run, one JSON line per event, on any file system."""

from __future__ import annotations

from maggy_like.storage.journal.backends import BLOCK, JournalBackend, Mark, backend_of
from maggy_like.storage.journal.journal import Journal, read_ends, read_header, read_journal, reading
from maggy_like.storage.journal.records import (
    FORMAT_VERSION,
    Contents,
    Earlier,
    Part,
    RunHeader,
    RunStatus,
    RunTotals,
    decode,
    decode_each,
    encode,
    from_records,
    open_line,
    to_records,
)

__all__ = [
    "BLOCK",
    "FORMAT_VERSION",
    "Contents",
    "Earlier",
    "Journal",
    "JournalBackend",
    "Mark",
    "Part",
    "RunHeader",
    "RunStatus",
    "RunTotals",
    "backend_of",
    "decode",
    "decode_each",
    "encode",
    "from_records",
    "open_line",
    "read_ends",
    "read_header",
    "read_journal",
    "reading",
    "to_records",
]
