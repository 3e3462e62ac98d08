"""Orphans are ended, however slow the machine is just then."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
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


# -- which descriptors a process has, and that others can be closed where the system tells nothing of them


SCRIPT = """
import json, os, resource, sys

from maggy_like.processes import resources

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
low, high = os.pipe()
kept = [os.dup2(low, 200), 1, 2]
if {hidden}:
    def refuse(path):
        raise FileNotFoundError
    os.listdir, listdir = refuse, os.listdir
resources.close_all_but(kept)

def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False

print(json.dumps([[fd for fd in range(256) if is_open(fd)], len(resources.open_descriptors())]))
"""


@pytest.mark.parametrize("hidden", [False, True])
def test_all_but_some_are_closed(hidden: bool) -> None:
    code = SCRIPT.format(hidden=hidden)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left, known = json.loads(done.stdout)
    assert left == [1, 2, 200]
    assert known == (0 if hidden else 4)  # that of the listing among them
