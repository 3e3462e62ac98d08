"""Whatever lies at a path or a URL: a run's folder, its journal, saved states and log files."""

from __future__ import annotations
