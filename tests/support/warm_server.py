"""The warm process of :mod:`warm_processes`: imports everything, then forks what it is asked for."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket

from maggy_like.processes.system import die_with_parent, fork_sibling
from maggy_like.processes.zygote.become import STARTED, become, receive_request


def main(control_fd: int, parent: int, modules: str) -> None:
    """Import ``modules``, which commas separate, then :func:`serve`."""
    for module in modules.split(","):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=control_fd), parent)


def serve(control: socket.socket, parent: int) -> None:
    """Fork for the process at the other end of ``control`` until it closes it."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (asked := receive_request(control)) is not None:
        request, descriptors = asked
        pid = fork_sibling()
        if pid == 0:
            become(request, descriptors)
        control.sendall(STARTED.pack(pid))
        for fd in descriptors:
            os.close(fd)
