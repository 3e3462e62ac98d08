"""The zygote: ``python -m maggy_like.processes.zygote FD OWNER`` imports, and forks what its owner asks for.

It has one thread, no child, and touches no GPU. If an import has started a thread or a process, or touched a GPU, a
fork of it would not be whole: each process that is requested then starts with a fresh interpreter. A zygote ends with
its owner, and when nothing was requested for ten minutes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys

from maggy_like.processes.fork_safety import why_not_whole
from maggy_like.processes.imports import import_ahead, is_installed
from maggy_like.processes.system import fork_sibling
from maggy_like.processes.zygote.become import BEGUN, NO_FORK, STARTED, become, become_fresh, receive_request

IDLE_SECONDS = 600.0

_OURS = ("maggy_like.worker.agent.agent", "maggy_like.worker.agent.fork_server")
"""Modules that every worker imports."""


def main(control_fd: int, owner: int) -> None:
    """Serve the process at the other end of ``control_fd`` until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    control.sendall(STARTED.pack(_first_fork()))
    import_ahead(_OURS)
    with contextlib.suppress(ProcessLookupError):  # the owner has ended already
        _serve(control, os.pidfd_open(owner))


def _first_fork() -> int:
    """Make a fork that ends at once, as a test: some sandboxes allow none."""
    try:
        pid = fork_sibling()
    except OSError:
        return NO_FORK
    if pid == 0:
        os._exit(0)
    return pid


def _serve(control: socket.socket, owner: int) -> None:
    poller = select.poll()
    for fd in (control.fileno(), owner):
        poller.register(fd, select.POLLIN)
    while True:
        readable = {fd for fd, _ in poller.poll(1e3 * IDLE_SECONDS)}
        if control.fileno() not in readable or (asked := receive_request(control)) is None:
            return
        request, (answer, *descriptors) = asked
        import_ahead(module for module in request.preload if _is_installed(module))
        is_whole = not why_not_whole()
        if _announce_fork(answer):
            pid = fork_sibling()
            if pid == 0:
                (become if is_whole else become_fresh)(request, descriptors)
            with contextlib.suppress(BrokenPipeError):  # its owner has ended; its session or its lifeline ends it
                os.write(answer, STARTED.pack(pid))
        for fd in (answer, *descriptors):
            os.close(fd)


def _is_installed(module: str) -> bool:
    """Return whether a module is new and installed: a user's own modules may change between searches."""
    return module not in sys.modules and is_installed(module)


def _announce_fork(answer: int) -> bool:
    """Announce a fork to its owner, and return whether the owner still wants it."""
    try:
        os.write(answer, BEGUN)
    except BrokenPipeError:
        return False
    poller = select.poll()
    poller.register(answer, select.POLLIN)
    return not poller.poll(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
