"""The beginning and the end of a trial's process: what an interpreter does at start and exit, in a fork.

A fork begins with the random numbers of its parent. It exits by ``os._exit``, so without this module nothing would
close the process pools that a trial has started, or flush its loggers.
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
    "joblib started processes in this trial and will start them again in each, which takes seconds; "
    "use engine=LocalEngine(isolation='worker') to keep them from trial to trial, or n_jobs=1 and more workers"
)


def begin_process() -> None:
    """Reset in a fork what belongs to the fork server, the random generators included.

    Without a new seed, trials that draw the same random numbers would be identical, and so would the dropout of all
    ranks. Python reseeds its own ``random`` in a fork.
    """
    atexit._clear()
    if (numpy_random := _module("numpy.random")) is not None:
        numpy_random.seed([*memoryview(os.urandom(16)).cast("I")])  # by itself it would take a tenth of a millisecond
    if (torch := _module("torch")) is not None:
        torch.default_generator.seed()
    if (multiprocessing := _module("multiprocessing.util")) is not None:
        multiprocessing._finalizer_registry.clear()


def end_process(grace: float, send_end: Callable[[], None]) -> None:
    """Run the exit hooks: loggers may have records to write, and pools may have semaphores to remove.

    If they take longer than ``grace`` seconds, ``send_end`` is called, and the process exits without them.
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
    """Flush the buffers of Python and C for the trial's output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _FLUSH_C(None)


def uses_joblib() -> bool:
    """Whether joblib has started processes here."""
    return getattr(_module("joblib.externals.loky.reusable_executor"), "_executor", None) is not None


def remove_leftovers(pid: int) -> None:
    """Remove what joblib keeps in shared memory for a process that was killed (Linux)."""
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
    """Return a module if it was imported."""
    return sys.modules.get(name)


def _has_hooks() -> bool:
    if atexit._ncallbacks() or threading.active_count() > _OWN_THREADS:
        return True
    util, process = _module("multiprocessing.util"), _module("multiprocessing.process")
    return bool(getattr(util, "_finalizer_registry", None) or getattr(process, "_children", None))


def _run_hooks() -> None:
    """Run exit hooks as an interpreter does, those of pools first to stop their threads and processes."""
    for hook in reversed(getattr(threading, "_threading_atexits", [])):
        with contextlib.suppress(Exception):
            hook()
    atexit._run_exitfuncs()
    if (multiprocessing := _module("multiprocessing.util")) is not None:
        multiprocessing._exit_function()
