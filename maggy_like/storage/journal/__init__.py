"""The journal: the record of a run, one JSON line per event, on any file system."""

from __future__ import annotations

from pathlib import Path

from maggy_like.storage.file_systems import is_local, open_url
from maggy_like.storage.journal.journal import (
    BLOCK,
    Journal,
    JournalBackend,
    LocalBackend,
    Mark,
    read_ends,
    read_header,
    read_journal,
    reading,
)
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
from maggy_like.storage.run_paths import kept_at

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


def backend_of(url: str) -> JournalBackend:
    """Return the backend of the directory at a path or at any URL that fsspec supports."""
    fs, path = open_url(url)
    if is_local(fs):
        if isinstance(kept := kept_at(Path(path)), Path):
            return LocalBackend(path)
        url, fs = kept, open_url(kept)[0]
    from maggy_like.storage.journal.object_store import ObjectStoreBackend

    return ObjectStoreBackend(fs, path, url)
