"""The request for a process, and how a fork becomes the process that ``python -m MODULE`` would be.

A request travels as four bytes of length, together with descriptors, and then the pickled request.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import functools
import io
import os
import pickle
import runpy
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Collection, Sequence
from typing import NoReturn

import msgspec

from maggy_like.processes.imports import command, start_path
from maggy_like.processes.system import close_all_but

MAX_DESCRIPTORS = 16

BEGUN = b"!"
"""The first reply, on the request's own connection: the fork follows at once, unless the owner has cancelled it.

To cancel, the owner shuts down its side of the connection. If this reply has not arrived by then, nothing is forked.
"""

STARTED = struct.Struct("!i")
"""The second reply: the new process's id."""

NO_FORK = -1
"""Sent in place of an id if the system cannot fork for another process."""

_LENGTH = struct.Struct("!I")


class Request(msgspec.Struct, frozen=True):
    """A process to start: ``python -m module arguments``, as a fork that already has many imports."""

    module: str  # the module to run as ``__main__``
    arguments: tuple[str, ...]
    environment: dict[str, str]  # its complete environment
    directory: str  # its working directory
    targets: tuple[int, ...]  # the numbers that the descriptors sent with this message get
    path: tuple[str, ...]  # its module search path
    preload: tuple[str, ...] = ()  # modules of installed packages that it will import, most of them before the fork


def send_request(sock: socket.socket, request: Request, descriptors: list[int]) -> None:
    """Send a request, and duplicates of descriptors."""
    data = pickle.dumps(request)  # other encodings reject file names that are not UTF-8
    sock.sendmsg([_LENGTH.pack(len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    sock.sendall(data)


def receive_request(sock: socket.socket) -> tuple[Request, list[int]] | None:
    """Wait for a request; return None when the other end is closed."""
    size, ancillary, _, _ = sock.recvmsg(_LENGTH.size, socket.CMSG_LEN(MAX_DESCRIPTORS * 4), socket.MSG_WAITALL)
    if len(size) < _LENGTH.size:
        return None
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    data = sock.recv(_LENGTH.unpack(size)[0], socket.MSG_WAITALL)
    asked: Request = pickle.loads(data)  # noqa: S301 (it comes from the owner, which decides what runs)
    return asked, list(descriptors)


_fork = 0  # its process id; a fork of that has another


def is_fork() -> bool:
    """Return whether this process was started by :func:`become`."""
    return _fork == os.getpid()


def become(request: Request, descriptors: list[int]) -> NoReturn:
    """Run the requested process to its end; call this in a new fork."""
    global _fork
    status, errors = 1, descriptors[request.targets.index(2)]
    try:
        _fork = os.getpid()
        os.setsid()  # Ctrl-C in a terminal must reach only the driver
        _place(descriptors, request.targets)
        errors = 2
        _set_up(request)
        status = _run_main(request.module)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:  # the streams may not exist yet
        _write_error(errors)
    finally:
        os._exit(status)


def become_fresh(request: Request, descriptors: Sequence[int]) -> NoReturn:
    """Run the requested process without imports, by a new interpreter in place of this one."""
    errors = descriptors[request.targets.index(2)]
    try:
        os.setsid()
        _place(descriptors, request.targets)
        errors = 2
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request.directory)
        os.execve(sys.executable, command(request.module, request.path, request.arguments), request.environment)
    except BaseException:
        _write_error(errors)
    finally:
        os._exit(1)


def _write_error(errors: int) -> None:
    """Write the current error to the process's stderr."""
    os.write(errors, traceback.format_exc().encode(errors="backslashreplace"))


def _run_main(module: str) -> int:
    """Run a module as ``__main__``; return the exit status."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _place(descriptors: Sequence[int], targets: Sequence[int]) -> None:
    """Give the descriptors their numbers, and close all others."""
    close_all_but(descriptors)
    apart = [_moved(fd, targets) for fd in descriptors]  # before one gets the number of another
    for fd, target in zip(apart, targets, strict=True):
        os.dup2(fd, target)
    close_all_but(targets)


def _moved(fd: int, targets: Collection[int]) -> int:
    while fd in targets:
        fd = os.dup(fd)
    return fd


def _set_up(request: Request) -> None:
    """Set what a new process inherits from the one that starts it."""
    show_as([sys.executable, "-P", "-m", request.module, *request.arguments])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # the old environment may have set it
    sys.path[:] = start_path(request.path)
    sys.argv[:] = [request.module, *request.arguments]
    _open_streams(unbuffered="PYTHONUNBUFFERED" in request.environment)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # the module may be imported already


def _open_streams(*, unbuffered: bool) -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = open(fd, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        errors = "backslashreplace" if fd == 2 else "strict"
        stream = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=fd == 2, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def show_as(arguments: Sequence[str]) -> None:
    """Overwrite this process's command line, which ``ps`` shows, as far as the old one's length allows."""
    start, size = _command_line()
    text = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    if size:
        ctypes.memmove(start, text[: size - 1].ljust(size, b"\0"), size)


@functools.cache  # forks have it in the same place
def _command_line() -> tuple[int, int]:
    """Return the address and the bytes of this process's command line; (0, 0) if they are not known."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start, end = map(int, stat.read().rpartition(b")")[2].split()[45:47])
    except OSError:  # without /proc, ps does not work either
        return 0, 0
    return start, end - start
