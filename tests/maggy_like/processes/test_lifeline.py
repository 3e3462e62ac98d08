"""Orphans are ended, however slow the machine is just then."""

from __future__ import annotations

import itertools
import os
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from maggy_like.processes import lifeline
from maggy_like.processes.lifeline import children, end_orphans


def test_a_machine_that_stands_still_before_the_first_kill_leaves_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(children())
    words = [sys.executable, "-c", "import signal; signal.pause()"]
    orphan = psutil.Process(os.posix_spawn(sys.executable, words, os.environ))
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(lifeline, "time", SimpleNamespace(monotonic=lambda: next(hours), sleep=time.sleep))
    end_orphans(others, patience=300.0)
    assert not orphan.is_running()
