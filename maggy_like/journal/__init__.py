"""The journal: a run's truth, one JSON line an event."""

from __future__ import annotations

from maggy_like.journal.journal import Journal, RunHeader, read_journal

__all__ = ["Journal", "RunHeader", "read_journal"]
