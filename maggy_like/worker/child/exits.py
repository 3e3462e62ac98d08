"""The beginning and the end of a trial's process: what an interpreter does at start and exit, in a fork.

A fork begins with the random numbers of its parent. It exits by ``os._exit``, so without this module nothing would
close the process pools that a trial has started, wait for its threads, or flush its files and loggers. A process that
runs several trials does after each one what that trial has registered.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
import traceback
import weakref
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from maggy_like.processes.fork_safety import finalizers, is_of_users
from maggy_like.processes.imports import is_installed
from maggy_like.processes.system import open_descriptors

SHARED_MEMORY = Path("/dev/shm")

_OWN_THREADS = 2
"""The main thread, and the one that listens to the agent while a trial runs."""

_FLUSH_C = ctypes.CDLL(None).fflush

POOL_HINT = (
    "joblib started processes in this trial and will start them again in each, which takes seconds; "
    "use engine=LocalEngine(isolation='worker') to keep them from trial to trial, or n_jobs=1 and more workers"
)


def forget_exit_hooks() -> None:
    """Forget the exit hooks and finalizers of this process, which concern none of its forks.

    A process that is forked often calls this before, so that its forks need not write to the shared pages with them.
    """
    atexit._clear()
    for finalizer in finalizers():
        finalizer.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def begin_process() -> None:
    """Reset in a fork what belongs to its parent, the random generators included.

    Without a new seed, trials that draw the same random numbers would be identical, and so would the dropout of all
    ranks. Python reseeds its own ``random`` in a fork.
    """
    if (numpy_random := _module("numpy.random")) is not None:
        numpy_random.seed([*memoryview(os.urandom(16)).cast("I")])  # by itself it would take a tenth of a millisecond
    if (torch := _module("torch")) is not None:
        torch.default_generator.seed()
    if (multiprocessing := _module("multiprocessing.util")) is not None:
        multiprocessing._finalizer_registry.clear()


def end_process(grace: float, send_end: Callable[[], None]) -> None:
    """End like an interpreter: wait for threads, run the exit hooks and finalizers, and close open files.

    If that takes longer than ``grace`` seconds, ``send_end`` is called, and the process exits without the rest.
    """
    if _has_hooks():
        _run_within(grace, send_end, lambda: _run_hooks(grace))
    if has_open_files():
        _run_within(grace, send_end, _close_files)
    flush_output()


def _run_within(grace: float, send_end: Callable[[], None], run: Callable[[], None]) -> None:
    """Call ``run``. If it hangs, report the trial's end and leave."""

    def give_up() -> None:
        print(f"what runs at the end of the trial takes longer than {grace:g} s, and is ended", file=sys.stderr)
        flush_output()
        send_end()
        os._exit(1)

    timer = threading.Timer(grace + _PAUSE, give_up)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # out of memory, perhaps: no thread can watch over the hooks
        timer.start()
        run()
        timer.cancel()


_PAUSE = 0.2
"""Seconds more for the hooks that follow the threads, which may use up the whole time."""


class TrialEnds:
    """The ends of trials that share a process: what the user's code has registered, not what libraries have.

    Libraries register their hooks once for the whole process, and could not be used after them.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._registered: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._known: set[Any] = set(finalizers())
        self._threads = set(threading.enumerate())
        self._left: weakref.WeakSet[Any] = weakref.WeakSet()  # work of pools that has taken too long
        register = atexit.register

        def recorded(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_installed(sys._getframe(1).f_globals.get("__name__")):
                self._registered.append((function, args, kwargs))
            return register(function, *args, **kwargs)

        atexit.register = recorded  # type: ignore[assignment]  # of the same signature

    def end(self, send_end: Callable[[], None]) -> None:
        """Do what the trial that has just ended has registered."""
        new = [it for it in finalizers() if it not in self._known and is_of_users(it)]
        threads = [it for it in threading.enumerate() if it not in self._threads and not it.daemon]
        if new or threads or self._registered:
            _run_within(self._grace, send_end, lambda: self._run(new, threads))
        if has_open_files():
            _run_within(self._grace, send_end, _flush_files)
        self._known = set(finalizers())
        self._threads = set(threading.enumerate()) - _pool_threads()
        flush_output()

    def _run(self, own: list[Any], threads: Iterable[threading.Thread]) -> None:
        deadline = time.monotonic() + self._grace
        pools = _pool_threads()
        if not pools.isdisjoint(threads):
            self._await_work()
        _join([it for it in threads if it not in pools], self._grace, deadline)
        while self._registered:
            function, args, kwargs = self._registered.pop()
            atexit.unregister(function)
            _call(lambda function=function, args=args, kwargs=kwargs: function(*args, **kwargs))  # type: ignore[misc]
        for finalizer in reversed(own):
            _call(finalizer)

    def _await_work(self) -> None:
        """Wait for the work of pools, but not for their threads: the function may keep a pool for its process."""
        from concurrent.futures import Future, wait

        pending = [it for it in gc.get_objects() if Future in type(it).__mro__ and it not in self._left]
        left = wait(pending, self._grace).not_done
        self._left.update(left)
        if left:
            print(f"the work of a pool still runs {self._grace:g} s after its trial, and is left", file=sys.stderr)


def _pool_threads() -> set[threading.Thread]:
    """Return the threads of the executors of this process, which end once nothing refers to their executor."""
    return {
        *getattr(_module("concurrent.futures.thread"), "_threads_queues", ()),
        *getattr(_module("concurrent.futures.process"), "_threads_wakeups", ()),
    }


def _call(function: Callable[[], Any]) -> None:
    """Call what was registered; its error concerns nobody else."""
    try:
        function()
    except Exception:
        traceback.print_exc()


def _join(threads: Iterable[threading.Thread], grace: float, deadline: float | None = None) -> None:
    """Wait for threads as Python does at its end, but not for ever."""
    deadline = time.monotonic() + grace if deadline is None else deadline
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            print(f"the thread {thread.name!r} still runs {grace:g} s after its trial, and is left", file=sys.stderr)


def has_open_files() -> bool:
    """Return whether a file is open for writing, whose last lines may be in a buffer."""
    if not (found := open_descriptors()):
        return True  # this system does not list them
    for fd in found:
        with contextlib.suppress(OSError):
            status = os.fstat(fd)  # a file without a name is of this project, or nobody can read it later
            if not stat.S_ISREG(status.st_mode) or not status.st_nlink:
                continue
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                return True
    return False


def _files() -> list[Any]:
    """Return Python's open files, those first that write into others."""
    found = [value for value in gc.get_objects() if _IO in type(value).__mro__]
    kept = [file for file in found if file not in (sys.stdin, sys.stdout, sys.stderr) and not _is_of_streams(file)]
    return sorted(kept, key=_depth)


def _depth(file: Any) -> int:
    """Return how near a file is to the system: text is written to a buffer, perhaps by way of a compressed file."""
    if isinstance(file, io.TextIOBase):
        return 0
    if type(file).__module__ != "_io":
        return 1
    return 2 if isinstance(file, io.BufferedIOBase) else 3


_IO: type = io.IOBase.__mro__[1]
"""The base class of all files."""


def _is_of_streams(file: Any) -> bool:
    with contextlib.suppress(Exception):
        return bool(file.fileno() <= _STDERR)
    return False


_STDERR = 2


_HOLDERS: tuple[type, ...] = (zipfile.ZipFile, tempfile._TemporaryFileWrapper)
"""What is complete, or removes its file, only once it is closed; elsewhere the end of an interpreter does that."""


def _close_files() -> None:
    logging.shutdown()  # which writes what its handlers hold back
    for holder in [it for it in gc.get_objects() if type(it) in _HOLDERS]:
        with contextlib.suppress(Exception):
            holder.close()
    for file in _files():
        with contextlib.suppress(Exception):
            if file.writable():
                file.close()


def _flush_files() -> None:
    for handler in [reference() for reference in logging._handlerList]:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            handler.flush()
    for file in _files():
        with contextlib.suppress(Exception):
            if file.writable():
                file.flush()


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


def _run_hooks(grace: float) -> None:
    """Run exit hooks as an interpreter does, those of pools first to stop their threads and processes."""
    for hook in reversed(getattr(threading, "_threading_atexits", [])):
        with contextlib.suppress(Exception):
            hook()
    current = threading.current_thread()
    _join([it for it in threading.enumerate() if not it.daemon and it is not current], grace)
    atexit._run_exitfuncs()
    if (multiprocessing := _module("multiprocessing.util")) is not None:
        multiprocessing._exit_function()
