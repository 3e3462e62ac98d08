"""``maggy-like``: the command line, for runs in their folders and for scripts."""

from __future__ import annotations

from maggy_like.command_line.main import main

__all__ = ["main"]
