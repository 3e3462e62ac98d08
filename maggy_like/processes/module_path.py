"""Where this process looks for modules, and how processes that it starts get to know."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def module_path() -> tuple[str, ...]:
    """Return what ``sys.path`` has, without what Python itself passes over, such as a ``pathlib.Path``."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


def python_path(entries: Iterable[str]) -> str:
    """Join folders for ``PYTHONPATH``, without those that it cannot hold: a colon in a name would part it.

    Example:
        >>> python_path(["/home/me", "/runs/2026-11-25T13:00"])
        '/home/me'
    """
    return os.pathsep.join(entry for entry in entries if os.pathsep not in entry)
