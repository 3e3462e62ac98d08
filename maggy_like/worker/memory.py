"""What the kernel says of processes that it killed for want of memory (Linux)."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


def oom_kills() -> int:
    """How many processes the kernel's OOM killer has ended so far.

    Those of this process's control group, with version 2 of the groups below it too; where that is not told, those of
    the machine; 0 where nothing is.
    """
    told = _group("0::") / "memory.events", _group(r"\d+:memory:", "memory") / "memory.oom_control"
    for counters in (*told, Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def offer_as_victim() -> None:
    """Have the kernel end this process before others: a trial that takes too much memory must not cost its worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _group(hierarchy: str, folder: str = "") -> Path:
    """Where the control group of this process in a hierarchy shows its files."""
    root = Path("/sys/fs/cgroup", folder)
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{hierarchy}/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE):
            return root / found[1]
    return root
