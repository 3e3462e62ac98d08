"""A gate at which trials wait until the test opens it: a named pipe, so nobody polls."""

from __future__ import annotations

import os
from pathlib import Path


class Gate:
    """Whoever opens :attr:`path` for reading waits until :meth:`open`, and nobody waits from then on."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)

    def open(self) -> None:
        """Let all through; the writing end stays open for as long as this process."""
        os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
