"""The begin and the end of a trial's process: what Python does as an interpreter starts and exits, in a fork.

A fork has the random numbers of its parent before it. It leaves by ``os._exit``, so nothing would close the pools of
processes that a trial has started, or flush its loggers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")

_OWN_THREADS = 2
"""The main thread, and the one that listens to the agent while a trial runs."""

_FLUSH_C = ctypes.CDLL(None).fflush

POOL_HINT = (
    "joblib started processes in this trial and will start them anew in each, which takes seconds; "
    "engine=LocalEngine(isolation='worker') keeps them from trial to trial, and n_jobs=1 with more workers needs none"
)


def begin_process() -> None:
    """Leave to the fork server what it has to do at its end, and have random numbers of its own.

    Without a seed, each process draws others: trials that all drew the same would be alike, and a rank's dropout that
    of all ranks. Python's own ``random`` sees to that by itself.
    """
    atexit._clear()
    if (numpy_random := _module("numpy.random")) is not None:
        numpy_random.seed([*memoryview(os.urandom(16)).cast("I")])  # by itself it would take a tenth of a millisecond
    if (torch := _module("torch")) is not None:
        torch.default_generator.seed()
    if (multiprocessing := _module("multiprocessing.util")) is not None:
        multiprocessing._finalizer_registry.clear()


def end_process(grace: float, send_end: Callable[[], None]) -> None:
    """What a process does before its exit: a trial's loggers may have things to write, its pools semaphores to remove.

    Args:
        grace: Seconds that exit hooks may take.
        send_end: Called when they take longer, before the process leaves without them.
    """

    def give_up() -> None:
        send_end()
        os._exit(1)

    if _has_hooks():
        timer = threading.Timer(grace, give_up)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # out of memory, perhaps: no thread can watch over the hooks
            timer.start()
            _run_hooks()
            timer.cancel()
    flush_output()


def flush_output() -> None:
    """Push out what Python and C still hold of the trial's output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _FLUSH_C(None)


def uses_joblib() -> bool:
    """Whether joblib has started processes here."""
    return getattr(_module("joblib.externals.loky.reusable_executor"), "_executor", None) is not None


def remove_leftovers(pid: int) -> None:
    """Remove what joblib keeps in shared memory, of a process that was killed and so could not (Linux)."""
    mark = re.compile(rf"sem\.loky-{pid}-|joblib_memmapping_folder_{pid}_")
    left: Iterable[str] = ()
    with contextlib.suppress(OSError):
        left = os.listdir(SHARED_MEMORY)
    for name in filter(mark.match, left):
        path = SHARED_MEMORY / name
        with contextlib.suppress(OSError):  # it has just gone, or it is another user's, whose process had this number
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _module(name: str) -> Any:
    """A module, if anything has imported it."""
    return sys.modules.get(name)


def _has_hooks() -> bool:
    if atexit._ncallbacks() or threading.active_count() > _OWN_THREADS:
        return True
    util, process = _module("multiprocessing.util"), _module("multiprocessing.process")
    return bool(getattr(util, "_finalizer_registry", None) or getattr(process, "_children", None))


def _run_hooks() -> None:
    """As an interpreter does: the hooks of pools first, which stop their threads and processes."""
    for hook in reversed(getattr(threading, "_threading_atexits", [])):
        with contextlib.suppress(Exception):
            hook()
    atexit._run_exitfuncs()
    if (multiprocessing := _module("multiprocessing.util")) is not None:
        multiprocessing._exit_function()
