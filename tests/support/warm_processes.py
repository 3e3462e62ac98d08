"""Python processes that start with what they need imported: forks of warm processes.

A zygote and an optimizer's process are started as new interpreters, and each imports for seconds. While
:class:`WarmPopen` stands in for ``subprocess.Popen``, these modules run in forks of processes that have imported
already. To all others such a fork is the same: a child of the process that started it, with the environment, the
descriptors, the path and the ``__main__`` that it would have had.
"""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from maggy_like.processes.zygote.become import STARTED, Request, send_request

ZYGOTE = "maggy_like.processes.zygote"

PROPOSER = "maggy_like.driver.proposer_process"

WORKERS = ("maggy_like.worker.agent.agent", "numpy")

WORKERS_WITH_TORCH = (
    *WORKERS,
    "maggy_like.ablation.modules",
    "maggy_like.distributed.ddp",
    "maggy_like.distributed.parallel",
    "maggy_like.distributed.rendezvous",
    "maggy_like.distributed.sharded",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
)
"""What workers import. A fork of a process with torch takes five times as long as one of a process without."""

OPTIMIZERS = ("maggy_like.driver.proposers", "optimizers.registry", "optimizers.samplers.bayesian", "scipy.stats")
"""What the process of an optimizer imports."""

PYTHON = sys.executable
"""A test that puts another program in its place has processes start there: in another network, or not at all."""

_BOOT = """
import sys
control, parent, modules, *sys.path = sys.argv[1:]
from warm_server import main
main(int(control), int(parent), modules)
"""


class WarmServer:
    """A process that has imported modules, from the side of who has things started."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [PYTHON, "-P", "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), ",".join(modules), *sys.path],
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End it; what it has started lives on."""
        self._socket.close()
        self._process.wait()


class WarmPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` that forks some modules from warm processes, and starts all else as ever."""

    servers: ClassVar[Mapping[str, WarmServer]]  # by module

    def _execute_child(self, args: Any, *options: Any) -> None:
        if not (isinstance(args, list) and args[:3] == [PYTHON, "-P", "-c"] and {*args[4:5]} & self.servers.keys()):
            super()._execute_child(args, *options)  # type: ignore[misc]
            return
        request, descriptors = request_of(args, options)
        self.pid = self.servers[request.module].start(request, descriptors)
        self._child_created = True
        self._close_pipe_fds(*options[9:15])  # type: ignore[attr-defined]


def request_of(args: list[str], options: tuple[Any, ...]) -> tuple[Request, list[int]]:
    """What ``_execute_child`` was asked for, and the descriptors that go along."""
    _, _, _, pass_fds, cwd, env, *_ = options
    stdin, stdout, stderr = options[9], options[12], options[14]
    descriptors = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
    request = Request(
        module=args[4],
        arguments=tuple(args[5:]),
        environment=dict(os.environ if env is None else env),
        directory=os.fspath(cwd or os.getcwd()),
        targets=(0, 1, 2, *pass_fds),
        path=tuple(ast.literal_eval(args[3].partition("\n")[0].removeprefix("path = "))),
    )
    return request, [*descriptors, *pass_fds]
