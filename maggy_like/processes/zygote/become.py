"""What a zygote is asked for, and what a fork does to be the process that ``python -m MODULE`` would be."""

from __future__ import annotations

import array
import atexit
import ctypes
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

from maggy_like.processes.resources import close_all_but

MAX_DESCRIPTORS = 16

STARTED = struct.Struct("!i")
"""The answer, on a pipe of the request's own: the new process's id."""

NO_FORK = -1
"""In place of an id, where the system forks for no other process."""

_LENGTH = struct.Struct("!I")


class Request(msgspec.Struct, frozen=True):
    """A process to start: ``python -m module arguments``, as a fork that has imported much of it already.

    Attributes:
        module: What runs as ``__main__``.
        arguments: Its arguments.
        environment: All of it.
        folder: The working folder.
        targets: The numbers that the descriptors beside this message get.
        preload: Modules of installed packages that it will import; what can be is imported before the fork.
        safe_path: Whether the working folder is not searched for modules (Python's ``-P``).
    """

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    targets: tuple[int, ...]
    preload: tuple[str, ...] = ()
    safe_path: bool = False


def send_request(sock: socket.socket, request: Request, descriptors: list[int]) -> None:
    """Send a request, and duplicates of descriptors.

    Raises:
        OSError: The other end is gone, or takes nothing.
    """
    data = pickle.dumps(request)  # as no other encoding takes names of files that are no UTF-8
    sock.sendmsg([_LENGTH.pack(len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    sock.sendall(data)


def receive_request(sock: socket.socket) -> tuple[Request, list[int]] | None:
    """Wait for a request; None when the other end is gone."""
    size, ancillary, _, _ = sock.recvmsg(_LENGTH.size, socket.CMSG_LEN(MAX_DESCRIPTORS * 4), socket.MSG_WAITALL)
    if len(size) < _LENGTH.size:
        return None
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    data = sock.recv(_LENGTH.unpack(size)[0], socket.MSG_WAITALL)
    asked: Request = pickle.loads(data)  # noqa: S301 (it comes from the owner, which says what is run)
    return asked, list(descriptors)


_base: list[str] = []
_fork = 0  # its process id; a fork of that has another


def is_fork() -> bool:
    """Whether this process became what it is by :func:`become`."""
    return _fork == os.getpid()


def set_base(path: Sequence[str]) -> None:
    """Say where any Python of this installation looks for modules, whatever its environment says."""
    _base[:] = path


def become(request: Request, descriptors: list[int]) -> NoReturn:
    """Be the process that was asked for, to its end. Called in a process that has just been forked."""
    global _fork
    status, errors = 1, descriptors[request.targets.index(2)]
    try:
        _fork = os.getpid()
        os.setsid()  # Ctrl-C in a terminal is the driver's alone
        _place(descriptors, request.targets)
        errors = 2
        _set_up(request)
        status = _run_main(request.module)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:  # there may be no streams yet
        _tell(errors)
    finally:
        os._exit(status)


def become_fresh(request: Request, descriptors: Sequence[int]) -> NoReturn:
    """Be that process with nothing imported: by a new interpreter in this one's place."""
    errors = descriptors[request.targets.index(2)]
    try:
        os.setsid()
        _place(descriptors, request.targets)
        errors = 2
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request.folder)
        os.execve(sys.executable, _command(request), request.environment)
    except BaseException:
        _tell(errors)
    finally:
        os._exit(1)


def _tell(errors: int) -> None:
    """Write the present error where the process's errors go."""
    os.write(errors, traceback.format_exc().encode(errors="backslashreplace"))


def _command(request: Request) -> list[str]:
    options = ["-P"] if request.safe_path else []
    return [sys.executable, *options, "-m", request.module, *request.arguments]


def _run_main(module: str) -> int:
    """Run a module as ``__main__``; the exit status."""
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
    """Give descriptors their numbers, and close all others."""
    close_all_but(descriptors)
    apart = [_moved(fd, targets) for fd in descriptors]  # before one takes the number of another
    for fd, target in zip(apart, targets, strict=True):
        os.dup2(fd, target)
    close_all_but(targets)


def _moved(fd: int, targets: Collection[int]) -> int:
    while fd in targets:
        fd = os.dup(fd)
    return fd


def _set_up(request: Request) -> None:
    """Set what a fresh process has from who started it."""
    show_as(_command(request))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # which another environment may have named
    own = [] if request.safe_path else [request.folder]
    path = [entry for entry in request.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*own, *path, *(entry for entry in _base if entry not in path)]
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
    """Write a command line over this process's own, where ``ps`` reads it, as far as there is room."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start, end = map(int, stat.read().rpartition(b")")[2].split()[45:47])
    except OSError:  # without /proc there is no ps either
        return
    text = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
