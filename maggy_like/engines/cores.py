"""How many of this machine's cores this process may use."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity mask, and no more than its control group's quota.

    A quota of one and a half cores counts as two; at least one is always there.

    Example:
        >>> 1 <= usable_cores() <= os.cpu_count()
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas()])))


def _quotas() -> Iterator[float]:
    """What each control group that this process is in, its parents included, grants; in cores."""
    for folder in _groups("0:", _CGROUPS):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no quota
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
    for folder in _groups(r"\d+:(?:[^:\n]*,)?cpu(?:,[^:\n]*)?", _CGROUPS / "cpu"):
        with contextlib.suppress(OSError, ValueError):
            granted = int((folder / "cpu.cfs_quota_us").read_text())
            if granted > 0:  # -1: no quota
                yield granted / int((folder / "cpu.cfs_period_us").read_text())


def _groups(hierarchy: str, root: Path) -> Iterator[Path]:
    """The folders of this process's groups in a hierarchy; a container sees its own group as the root."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{hierarchy}:/(.*)$", _OWN.read_text(), re.MULTILINE):
            own = root / found[1]
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder != root)
    yield root
