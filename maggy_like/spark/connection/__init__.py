"""Where a session's driver listens, and whether a Spark Connect server answers."""

from __future__ import annotations
