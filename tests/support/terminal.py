"""A script in a terminal: what it shows, Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spark_jobs import DIRECTORY

PATHS = os.pathsep.join(filter(None, [DIRECTORY, os.environ.get("PYTHONPATH")]))
"""Where the script finds the packages, and the modules of this directory."""


class Terminal:
    """A script in a real terminal of its own.

    Attributes:
        text: What it has shown so far.
    """

    def __init__(self, directory: Path, code: str) -> None:
        (directory / "tmp").mkdir()
        (directory / "script.py").write_text(code)
        self.text = ""
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.environ |= {"TMPDIR": str(directory / "tmp"), "PYTHONPATH": PATHS}
            os.execv(sys.executable, [sys.executable, "script.py"])

    def press_ctrl_c(self) -> None:
        os.write(self._screen, b"\x03")

    def terminate(self) -> None:
        """As a scheduler or a container does that wants the process to end."""
        os.kill(self.pid, signal.SIGTERM)

    def until(self, pattern: str, times: int = 1) -> None:
        """Wait until it has shown something; the tests' own time limit ends a wait that is in vain."""
        while len(re.findall(pattern, self.text)) < times:
            try:
                self.text += os.read(self._screen, 65536).decode(errors="replace")
            except OSError:
                pytest.fail(f"it ended without {pattern!r}:\n{self.text}")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._screen)


@contextmanager
def terminal(directory: Path, code: str) -> Iterator[Terminal]:
    shown = Terminal(directory, code)
    try:
        yield shown
    finally:
        shown.close()
