"""The CPU cores of a process: how many it may use, its share of them as libraries look for it, and how many it needs.

A worker's share has to be where each library looks for it. A variable is the place that most of them agree on, and
Python's own count of the cores is the place for process pools. Docs: ADR 64.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity mask and its control group's quota.

    A quota of one and a half cores counts as two. A process with a share, such as a trial that starts a search of its
    own, may use that share.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = [int(os.environ[_COUNT])] if os.environ.get(_COUNT, "").isdecimal() else []
    return max(1, math.ceil(min([cores, *own, *_quotas()])))


def _quotas() -> Iterator[float]:
    """Return the quota in cores of each control group of this process, including parents."""
    for directory in _groups("0:", _CGROUPS):
        with contextlib.suppress(OSError, ValueError):  # "max" means no quota
            quota, period = (directory / "cpu.max").read_text().split()
            yield int(quota) / int(period)
    for directory in _groups(r"\d+:(?:[^:\n]*,)?cpu(?:,[^:\n]*)?", _CGROUPS / "cpu"):
        with contextlib.suppress(OSError, ValueError):
            granted = int((directory / "cpu.cfs_quota_us").read_text())
            if granted > 0:  # -1: no quota
                yield granted / int((directory / "cpu.cfs_period_us").read_text())


def _groups(hierarchy: str, root: Path) -> Iterator[Path]:
    """Return the directories of this process's groups in a hierarchy. In a container, its group is the root."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{hierarchy}:/(.*)$", _OWN.read_text(), re.MULTILINE):
            own = root / found[1]
            yield from (
                directory for directory in (own, *own.parents) if directory.is_relative_to(root) and directory != root
            )
    yield root


OPENMP = "OMP_NUM_THREADS"
"""Threads of the OpenMP runtimes, of OpenBLAS and MKL, torch, XGBoost, native LightGBM, Arrow and numexpr."""

_COUNT = "PYTHON_CPU_COUNT"
"""What ``os.cpu_count`` returns, from Python 3.13 on."""

VARIABLES = (
    OPENMP,
    _COUNT,
    "LOKY_MAX_CPU_COUNT",  # joblib, n_jobs=-1 of scikit-learn, and LightGBM's scikit-learn API by default
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",  # libraries in Rust, such as transformers' tokenizers
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "VECLIB_MAXIMUM_THREADS",  # Apple's BLAS
)
"""Variables in which libraries look for a number of cores or threads."""

WAIT_POLICY = "OMP_WAIT_POLICY"
"""How OpenMP's threads wait for each other.

By default they keep their cores busy meanwhile. If another process needs one of these, a fit of 0.05 s takes seconds.
"""

PASSIVE = "PASSIVE"

_OF_BLAS = ("BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that a user may set for a BLAS only. Without them, it follows :data:`OPENMP`."""


def share_of(cores: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that limit a process to ``cores``.

    Those that the user has set are left out, except OpenMP's, which keeps the user's number.
    """
    share = {name: str(cores) for name in VARIABLES if name not in environment}
    if environment.get(OPENMP, "").isdecimal():
        share[OPENMP] = environment[OPENMP]
    return share


def show_share(share: Mapping[str, str]) -> None:
    """Show a share to what this process loads and starts later, but to nothing that may start threads at its import.

    A process that forks others must not have threads, so OpenMP's variable remains as it is.
    """
    os.environ.update({name: value for name, value in share.items() if name != OPENMP})
    if _needs_threads(share):
        import threadpoolctl  # noqa: F401 (once, for all forks)
    if _COUNT in share:
        os.cpu_count = _counting(int(share[_COUNT]), os.cpu_count)
        if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
            os.process_cpu_count = _counting(int(share[_COUNT]), os.process_cpu_count)


def _counting(cores: int, count: Callable[[], int | None]) -> Callable[[], int | None]:
    """Return a function that counts the cores of a share; loky gets the machine's.

    loky takes a limit that is less than the machine's cores as it is. Otherwise it counts the physical cores.
    """

    def counted() -> int | None:
        return count() if sys._getframe(1).f_globals.get("__name__", "").endswith("loky.backend.context") else cores

    return counted


def use_share(share: Mapping[str, str]) -> None:
    """Give this process its share, after :func:`show_share`: libraries that were imported with one thread get more.

    Those that have another number by now were set by the user.
    """
    if not _needs_threads(share):
        return
    os.environ[OPENMP] = share[OPENMP]
    cores = int(share[OPENMP])
    for name, read, write in (
        ("torch", "get_num_threads", "set_num_threads"),
        ("pyarrow", "cpu_count", "set_cpu_count"),
        ("numexpr", "get_num_threads", "set_num_threads"),
    ):
        module: Any = sys.modules.get(name)
        with contextlib.suppress(AttributeError):  # its import has failed half-way
            if module is not None and getattr(module, read)() == 1:
                getattr(module, write)(cores)
    from threadpoolctl import ThreadpoolController

    own = () if any(name in os.environ for name in _OF_BLAS) else ("blas",)
    for library in ThreadpoolController().lib_controllers:
        if library.user_api in ("openmp", *own) and library.num_threads == 1:
            library.set_num_threads(cores)


def _needs_threads(share: Mapping[str, str]) -> bool:
    """Return whether numeric libraries get several threads, after their import with one."""
    return int(share.get(OPENMP, 1)) > 1


LOOK = 2.0
"""Seconds between two checks of :class:`Overload`."""

_LOOKS = 3
"""Number of consecutive checks that must find too many threads: libraries start many of them for a moment."""

_SPARE = 1.5, 0.75
"""Factor, and addition, by which the number of threads must exceed the cores."""

_WAITING = 0.1
"""Share of that time in which the threads must have waited for a core: on an idle machine they disturb nobody."""


class Overload:
    """Finds a process that keeps more threads running or ready to run than it has cores, with its descendants (Linux).

    The kernel counts the time that each thread spends on a core, and the time that it waits for one.
    """

    def __init__(self, cores: int, times: Callable[[int], dict[str, tuple[int, int]]] | None = None) -> None:
        self._times = times or times_of
        self._most = max(_SPARE[0] * cores, cores + _SPARE[1])
        self._before: dict[str, tuple[int, int]] = {}  # nanoseconds by thread
        self._since = 0.0
        self._found = 0

    def check(self, process: int, now: float) -> float | None:
        """Return the mean number of threads since the last call if it has been too large for several calls."""
        counted = self._times(process)
        seconds, self._since = now - self._since, now
        before, self._before = self._before, counted
        spent = [
            (running - before[thread][0], waiting - before[thread][1])
            for thread, (running, waiting) in counted.items()
            if thread in before
        ]
        waited = sum(waiting for _, waiting in spent)
        total = sum(running for running, _ in spent) + waited
        number = total / 1e9 / seconds
        self._found = self._found + 1 if number > self._most and waited > _WAITING * total else 0
        return number if self._found >= _LOOKS else None


def times_of(process: int) -> dict[str, tuple[int, int]]:
    """Return the threads of a process and its descendants, with their nanoseconds on a core and waiting for one."""
    found: dict[str, tuple[int, int]] = {}
    for each in _family(process):
        for thread in _threads_of(each):
            with contextlib.suppress(OSError):  # it has just ended, or the kernel does not count
                running, waiting, _ = map(int, (thread / "schedstat").read_text().split())
                found[thread.name] = running, waiting
    return found


def _family(process: int) -> list[int]:
    """Return a process and its descendants."""
    found = [process]
    for each in found:
        for thread in _threads_of(each):
            with contextlib.suppress(OSError):  # it has just ended
                found += map(int, (thread / "children").read_text().split())
    return found


def _threads_of(process: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{process}/task").iterdir())
    return []
