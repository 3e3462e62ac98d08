"""Spark's daemon of Python workers with torch imported: what a session with :data:`CONF` starts instead of its own.

Its workers have torch, and their zygotes are forks too: of a process that each worker has forked before anything else.
Without it each of them imports for three seconds. The name is long since a fork's command line is written over that of
the daemon.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark.daemon
import warm_server
from warm_processes import PROPOSER, ZYGOTE, WarmPopen, WarmServer

from maggy_like.processes.system import is_supported

CONF = {"spark.python.daemon.module": Path(__file__).stem} if is_supported() else {}
"""Settings of a session whose Java process finds this file; see :func:`found`."""

WARM = (
    "maggy_like.distributed.ddp",
    "maggy_like.distributed.parallel",
    "maggy_like.distributed.rendezvous",
    "maggy_like.worker.agent.agent",
    "torch._dynamo",
)
"""What the workers import, most of them more than one of these."""

_worker = pyspark.daemon.worker


@contextlib.contextmanager
def found() -> Iterator[None]:
    """Have Java processes that are started meanwhile find this file."""
    import pytest

    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        for directory in (here.parents[1], here):
            patch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
        yield


class ForkedServer(WarmServer):
    """The warm process as a fork of this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        parent = os.getpid()
        if os.fork() == 0:
            try:
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                control = theirs.fileno()
                os.closerange(3, control)
                os.closerange(control + 1, 1000)
                warm_server.serve(theirs, parent)
            finally:
                os._exit(0)
        theirs.close()


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run the tasks that come by a socket, in a process that the daemon has just forked, or that has run some."""
    if not hasattr(WarmPopen, "servers"):
        WarmPopen.servers = dict.fromkeys((ZYGOTE, PROPOSER), ForkedServer())
        subprocess.Popen = WarmPopen  # type: ignore[misc]
    return _worker(sock, authenticated)


def main() -> None:
    """Import everything, then serve Spark."""
    for module in WARM:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    pyspark.daemon.worker = worker
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
