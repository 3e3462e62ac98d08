"""What a run keeps at a path or a URL: its journal, checkpoints, log files and control files."""

from __future__ import annotations
