"""Python processes that start with torch and the optimizers imported: forks of one warm process.

A zygote and an optimizer's process are started as new interpreters, and each imports for seconds. While
:class:`WarmPopen` stands in for ``subprocess.Popen``, these modules run in forks of one process that has imported
everything. To all others such a fork is the same: a child of the process that started it, with the environment, the
descriptors, the path and the ``__main__`` that it would have had.
"""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading
from typing import Any, ClassVar

from maggy_like.processes.zygote.become import STARTED, Request, send_request

MODULES = ("maggy_like.processes.zygote", "maggy_like.driver.proposer_process")

PYTHON = sys.executable
"""A test that puts another program in its place has processes start there: in another network, or not at all."""

_BOOT = """
import sys
control, parent, *sys.path = sys.argv[1:]
from warm_server import main
main(int(control), int(parent))
"""


class WarmServer:
    """The process that has imported everything, from the side of who has things started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def start(self, request: Request, descriptors: list[int]) -> int:
        """Start a process; its id."""
        with self._lock:
            send_request(self._socket, request, descriptors)
            answer = self._socket.recv(STARTED.size, socket.MSG_WAITALL)
        if not answer:
            raise OSError("the warm process has died")
        return int(STARTED.unpack(answer)[0])

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
    return isinstance(args, list) and len(args) > 4 and args[:3] == [PYTHON, "-P", "-c"] and args[4] in MODULES


def request_of(args: list[str], options: tuple[Any, ...]) -> tuple[Request, list[int]]:
    """What ``_execute_child`` was asked for, and the descriptors that go along."""
    _, _, _, pass_fds, cwd, env, *_ = options
    stdin, stdout, stderr = options[9], options[12], options[14]
    descriptors = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
    request = Request(
        module=args[4],
        arguments=tuple(args[5:]),
        environment=dict(os.environ if env is None else env),
        folder=os.fspath(cwd or os.getcwd()),
        targets=(0, 1, 2, *pass_fds),
        path=tuple(ast.literal_eval(args[3].partition("\n")[0].removeprefix("path = "))),
    )
    return request, [*descriptors, *pass_fds]
