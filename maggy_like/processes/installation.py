"""Which entries of a module search path are Python's own or hold installed packages."""

from __future__ import annotations

import re

_STANDARD = re.compile(r"[/\\]lib(64)?[/\\]python3(\.\d+)?t?([/\\]lib-dynload)?[/\\]?$|[/\\]python3\d+t?\.zip$", re.I)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]?$", re.I)


def is_standard(entry: str) -> bool:
    """Whether a folder or archive is Python's standard library."""
    return _STANDARD.search(entry) is not None


def is_installation(entry: str) -> bool:
    """Whether a folder is of Python or of installed packages, not one that was put before them."""
    return is_standard(entry) or _INSTALLED.search(entry) is not None
