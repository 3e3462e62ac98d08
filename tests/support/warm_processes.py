"""Python processes that start with torch and the optimizers imported: forks of one warm process.

A zygote and an optimizer's process are started with ``python -m MODULE``, and each imports for seconds. While
:class:`WarmPopen` stands in for ``subprocess.Popen``, these modules run in forks of one process that has imported
everything. To all others such a fork is the same: a child of the process that started it, with the environment, the
descriptors, the path and the ``__main__`` that it would have had.
"""

from __future__ import annotations

import array
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
from typing import Any, ClassVar

import msgspec

MODULES = ("maggy_like.processes.zygote", "maggy_like.driver.proposer")

PYTHON = sys.executable
"""A test that puts another program in its place has processes start there: in another network, or not at all."""

SYS_CLONE = {"x86_64": 56, "aarch64": 220}
"""The system call that makes a child of one's parent."""

LENGTH = struct.Struct("!I")
PID = struct.Struct("!i")
MAX_DESCRIPTORS = 16

_BOOT = """
import sys
base, (control, parent, *path) = list(sys.path), sys.argv[1:]
sys.path[:] = path
from warm_server import main
main(base, int(control), int(parent))
"""


class Request(msgspec.Struct, frozen=True):
    """What to start.

    Attributes:
        arguments: The command line, that of Python included.
        environment: All of it.
        folder: The working folder.
        targets: The numbers that the descriptors beside this message get.
        new_session: Whether the process leads a session.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    targets: list[int]
    new_session: bool

    @property
    def module(self) -> str:
        """What runs as ``__main__``."""
        return self.arguments[self.arguments.index("-m") + 1]


def is_supported() -> bool:
    """Whether this machine can make children for another process."""
    return sys.platform == "linux" and platform.machine() in SYS_CLONE


class WarmServer:
    """The process that has imported everything, from the side of who has things started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environment, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def start(self, request: Request, descriptors: list[int]) -> int:
        """Start a process; its id."""
        data = msgspec.msgpack.encode(request)
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            self._socket.sendmsg([LENGTH.pack(len(data))], fds)
            self._socket.sendall(data)
            answer = self._socket.recv(PID.size, socket.MSG_WAITALL)
        if not answer:
            raise OSError("the warm process has died")
        return int(PID.unpack(answer)[0])

    def close(self) -> None:
        """End it; what it has started lives on."""
        self._socket.close()
        self._process.wait()


class WarmPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` that forks :data:`MODULES` from a warm process, and starts all else as ever."""

    server: ClassVar[WarmServer]

    def _execute_child(self, args: Any, *options: Any) -> None:
        if not is_ours(args):
            super()._execute_child(args, *options)  # type: ignore[misc]
            return
        request, descriptors = request_of(args, options)
        self.pid = self.server.start(request, descriptors)
        self._child_created = True
        self._close_pipe_fds(*options[9:15])  # type: ignore[attr-defined]


def is_ours(args: Any) -> bool:
    """Whether a command line starts one of :data:`MODULES` with this Python."""
    if not isinstance(args, list) or args[:1] != [PYTHON]:
        return False
    module = args[2:4] if args[1:2] == ["-P"] else args[1:3]
    return module[:1] == ["-m"] and module[1] in MODULES


def request_of(args: list[str], options: tuple[Any, ...]) -> tuple[Request, list[int]]:
    """What ``_execute_child`` was asked for, and the descriptors that go along."""
    _, _, _, pass_fds, cwd, env, *_ = options
    stdin, stdout, stderr = options[9], options[12], options[14]
    descriptors = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
    request = Request(
        arguments=args,
        environment=dict(os.environ if env is None else env),
        folder=os.fspath(cwd or os.getcwd()),
        targets=[0, 1, 2, *pass_fds],
        new_session=bool(options[20]),
    )
    return request, [*descriptors, *pass_fds]
