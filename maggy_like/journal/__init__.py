"""The journal: a run's truth, one JSON line an event."""

from __future__ import annotations

from maggy_like.journal.earlier import Earlier, from_records, to_records
from maggy_like.journal.journal import Journal, RunHeader, read_header, read_journal

__all__ = ["Earlier", "Journal", "RunHeader", "from_records", "read_header", "read_journal", "to_records"]
