"""Where a session's driver listens, and whether its server answers."""

from __future__ import annotations
