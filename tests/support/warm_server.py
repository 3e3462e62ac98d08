"""The warm process of :mod:`warm_processes`: imports everything, then forks what it is asked for."""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import os
import platform
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from typing import NoReturn

import msgspec
from warm_processes import LENGTH, MAX_DESCRIPTORS, PID, SYS_CLONE, Request

from maggy_like.processes.lifeline import die_with_parent

CLONE_PARENT = 0x8000

WARM = (
    "maggy_like.distributed.ddp",
    "maggy_like.distributed.parallel",
    "maggy_like.distributed.rendezvous",
    "maggy_like.distributed.sharded",
    "maggy_like.driver.proposer.frames",
    "maggy_like.worker.agent.agent",
    "maggy_like.ablation.modules",
    "optimizers.registry",
    "optimizers.samplers.bayesian",
    "scipy.stats",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
)
"""What the processes import, most of them more than one of these."""

BASE: list[str] = []
"""Where any Python looks last for modules."""


def main(base: list[str], control_fd: int, parent: int) -> None:
    """Import everything, then :func:`serve`."""
    BASE[:] = base
    for module in WARM:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=control_fd), parent)


def serve(control: socket.socket, parent: int) -> None:
    """Fork for the process at the other end of ``control`` until it closes it."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        size, ancillary, _, _ = control.recvmsg(LENGTH.size, socket.CMSG_LEN(MAX_DESCRIPTORS * 4), socket.MSG_WAITALL)
        if not size:
            return
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        data = control.recv(LENGTH.unpack(size)[0], socket.MSG_WAITALL)
        pid = fork_sibling()
        if pid == 0:
            become(msgspec.msgpack.decode(data, type=Request), list(descriptors))
        control.sendall(PID.pack(pid))
        for fd in descriptors:
            os.close(fd)


def fork_sibling() -> int:
    """Like ``os.fork``, but the new process is a child of this one's parent, which can wait for it."""
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    clone = libc.syscall
    clone.restype = ctypes.c_long
    arguments = [ctypes.c_long(n) for n in (SYS_CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)]
    python.PyOS_BeforeFork()
    pid = int(clone(*arguments))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "cannot fork")
    return pid


def become(request: Request, descriptors: list[int]) -> NoReturn:
    """Turn this fork into the process that ``python -m MODULE`` would be, and run it to its end."""
    status = 1
    try:
        place(descriptors, request.targets)
        set_up(request)
        status = run_main(request.module)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(status)


def run_main(module: str) -> int:
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


def place(descriptors: list[int], targets: list[int]) -> None:
    """Give descriptors their numbers, and close all others."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1000) for fd in descriptors]
    os.closerange(0, 1000)
    for fd, target in zip(high, targets, strict=True):
        os.dup2(fd, target)
    os.closerange(1000, 1000 + 2 * MAX_DESCRIPTORS)


def show_as(arguments: list[str]) -> None:
    """Write a command line over this process's own, where ``ps`` and psutil read it, as far as there is room."""
    with open("/proc/self/stat", "rb") as stat:
        start, end = map(int, stat.read().rpartition(b")")[2].split()[45:47])
    text = b"".join(argument.encode() + b"\0" for argument in arguments)
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def set_up(request: Request) -> None:
    """Set what a fresh process has from who started it."""
    if request.new_session:
        os.setsid()
    show_as(request.arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # which another environment may have named
    tempfile.tempdir = None  # of the warm process's environment
    first = [] if "-P" in request.arguments else [request.folder]
    path = [entry for entry in request.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*first, *path, *(entry for entry in BASE if entry not in path)]
    sys.argv[:] = request.arguments[request.arguments.index(request.module) :]
    unbuffered = "PYTHONUNBUFFERED" in request.environment
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = open(fd, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        errors = "backslashreplace" if fd == 2 else "strict"
        stream = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=fd == 2, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # MODULE is imported already
