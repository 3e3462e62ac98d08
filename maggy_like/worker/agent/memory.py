"""What the kernel says of a process's memory, and of processes that it killed for want of it (Linux)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def oom_kills() -> int:
    """How many processes the kernel's OOM killer has ended so far.

    Those of this process's control group, with version 2 of the groups below it too; where that is not told, those of
    the machine; 0 where nothing is.
    """
    for counters in _places():
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def offer_as_victim() -> None:
    """Have the kernel end this process before others: a trial that takes too much memory must not cost its worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def resident() -> int:
    """How many bytes of memory this process uses, shared ones included; 0 if that is not known."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _places() -> Iterator[Path]:
    """The files that may count the kills, those that say most of this process first."""
    for hierarchy, folder, name in (
        ("0:", "", "memory.events"),
        (r"\d+:[^:\n]*\bmemory\b[^:\n]*", "memory", "memory.oom_control"),
    ):
        root = _CGROUPS / folder
        with contextlib.suppress(OSError):
            if found := re.search(rf"^{hierarchy}:/(.*)$", _OWN.read_text(), re.MULTILINE):
                yield root / found[1] / name
        yield root / name  # a container's own group may stand there, by another name than outside
    yield _MACHINE
