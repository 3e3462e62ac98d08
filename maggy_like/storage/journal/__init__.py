"""The journal: a run's truth, one JSON line an event, on any file system."""

from __future__ import annotations

from maggy_like.storage.journal.backend import JournalBackend, Mark
from maggy_like.storage.journal.earlier import Earlier, from_records, to_records
from maggy_like.storage.journal.journal import Journal, read_header, read_journal, reading
from maggy_like.storage.journal.open_backend import backend_of
from maggy_like.storage.journal.records import (
    FORMAT_VERSION,
    Contents,
    Part,
    RunHeader,
    RunStatus,
    decode,
    decode_each,
    encode,
    open_line,
)
from maggy_like.storage.journal.repair import Repairer

__all__ = [
    "FORMAT_VERSION",
    "Contents",
    "Earlier",
    "Journal",
    "JournalBackend",
    "Mark",
    "Part",
    "Repairer",
    "RunHeader",
    "RunStatus",
    "backend_of",
    "decode",
    "decode_each",
    "encode",
    "from_records",
    "open_line",
    "read_header",
    "read_journal",
    "reading",
    "to_records",
]
