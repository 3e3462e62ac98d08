"""The lines of a trial while it prints them."""

from __future__ import annotations

import time
from collections.abc import Callable

from maggy_like.cluster_driver.follow import Follower
from maggy_like.results.result import Result
from maggy_like.results.saved import read_log
from maggy_like.storage.journal import backend_of
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.trial import TrialState

LOOK = 0.5
"""Seconds between two looks at the log and the journal."""

_OVER = (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


def follow_log(result: Result, trial: int, rank: int, first: int, show: Callable[[str], None]) -> None:
    """Show what a trial has printed, and what it prints until it, or its run, has ended.

    Args:
        result: Its run.
        rank: Which of its workers.
        first: How many of the lines that are there already are shown.
        show: Gets each whole line.

    Raises:
        UserError: The log cannot be read.
        JournalError: The journal cannot be read.
    """
    backend, paths = backend_of(str(result.directory)), RunPaths(result.directory, result.store)
    follower = Follower(backend)
    shown, is_over = -1, False
    while not is_over:
        if shown >= 0:
            time.sleep(LOOK)
        is_held = backend.is_held()  # first: what it writes until it ends is read
        follower.look()
        known = next(it for it in follower.machine.study.trials if it.id == trial)
        is_over = known.state in _OVER or follower.ended is not None or not is_held
        lines = read_log(paths, trial, rank, known.attempt).splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n") and not is_over:
            lines.pop()  # it is being written
        shown = max(0, len(lines) - first) if shown < 0 else shown
        for line in lines[shown:]:
            show(line)
        shown = max(shown, len(lines))
