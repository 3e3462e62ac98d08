"""What ``ps``, ``top`` and ``htop`` show of a process of this project: what it does, and of which run."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

from maggy_like.processes.zygote.become import show_as

_PR_SET_NAME = 15
_C = ctypes.CDLL(None)

_run = ""  # the run and the worker that this process belongs to


def belong_to(worker: int, run: str) -> None:
    """Say to which worker of which run this process and its forks belong."""
    global _run
    _run = f"worker {worker} of {run}"


def trials_of(run: str) -> dict[int, str]:
    """Return the processes of this machine that run a trial of a run now: process ids with what each one does."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            title = (place / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            if title.startswith("maggy-like trial ") and title.endswith(f" of {run}"):
                found[int(place.name)] = title.removeprefix("maggy-like ").removesuffix(f" of {run}")
    return found


def entitle(role: str, module: str = "maggy_like.worker.agent.fork_server") -> None:
    """Name this process by what it does, such as ``trial 12``; ``module`` is what it was started as."""
    if sys.platform.startswith("linux"):
        show_as([f"maggy-like {role}, {_run}" if role else f"maggy-like {_run}", module])
        name = role or _run.partition(" of ")[0]
        _C.prctl(_PR_SET_NAME, f"maggy {name}".encode()[:15])
