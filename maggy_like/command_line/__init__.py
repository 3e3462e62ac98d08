"""``maggy-like``: runs at the command line, by their folder alone."""

from __future__ import annotations

from maggy_like.command_line.main import main

__all__ = ["main"]
