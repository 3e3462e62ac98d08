"""Displays of a running search: a notebook cell, a terminal, plain lines or nothing."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from maggy_like.display import text
from maggy_like.display.base import Display, LogLine, Snapshot, WorkerLine
from maggy_like.errors import ConfigError
from optimizers.checks import short

__all__ = ["Display", "LogLine", "SilentDisplay", "Snapshot", "WorkerLine", "make_display"]

_log = logging.getLogger(__name__)


class SilentDisplay:
    """Shows nothing. It logs warnings about mistakes and, at the end, about a guessed direction."""

    keeps_lines = has_shown_summary = False

    def start(self, snapshot: Snapshot) -> None:
        pass

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        for line in lines:
            if line.is_warning:
                _log.warning("%s: %s%s", text.clean(snapshot.name), text.prefix(line), text.clean(line.text))

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.update(snapshot, lines)
        if words := text.guess(snapshot):
            _log.warning("%s: %s", text.clean(snapshot.name), words)


def check_progress(progress: Any) -> None:
    """Check that there is such a display."""
    if not isinstance(progress, bool) and (not isinstance(progress, str) or progress not in _DISPLAYS):
        near = difflib.get_close_matches(progress, _DISPLAYS, n=1) if isinstance(progress, str) else ()
        names = ", ".join(map(repr, _DISPLAYS))
        hint = f"did you mean {near[0]!r}?" if near else "use True"
        raise ConfigError(f"progress must be True, False or one of {names}, got {short(progress)}; {hint}")


def make_display(progress: bool | str, *, with_trials: bool = False) -> Display:
    """Make the display that ``progress`` selects.

    Args:
        progress: If True, a notebook cell in a Jupyter kernel, a live region in a terminal, and plain lines elsewhere.
            If False, nothing but warnings, which are logged. ``"notebook"``, ``"terminal"``, ``"plain"`` and
            ``"silent"`` select one.
        with_trials: Whether trials run in this process. True then selects plain lines in a terminal, since a live
            region would hide the prompt of a debugger.

    Example:
        >>> make_display(False)
        <maggy_like.display.SilentDisplay object at ...>
    """
    check_progress(progress)
    if isinstance(progress, bool):
        progress = _fitting() if progress else "silent"
        if with_trials and progress == "terminal":
            progress = "plain"
    if progress == "silent":
        return SilentDisplay()
    made: Display = getattr(importlib.import_module(f"{__name__}.{progress}"), _DISPLAYS[progress])()
    return made


def _fitting() -> str:
    ipython = sys.modules.get("IPython")  # a kernel has loaded it; no other program pays for the import
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return "notebook"
    # The live region has characters that a terminal of another encoding cannot show.
    if sys.stdout is None:
        return "silent"
    # A program that copies its output to a file may have set a stream that has only write().
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    is_terminal = hasattr(sys.stdout, "isatty") and sys.stdout.isatty()
    return "terminal" if is_terminal and utf8 and os.environ.get("TERM") != "dumb" else "plain"


_DISPLAYS = {
    "notebook": "NotebookDisplay",
    "terminal": "TerminalDisplay",
    "plain": "PlainDisplay",
    "silent": "SilentDisplay",
}
"""The class of each display. Its module has its name, and is loaded when it is needed."""
