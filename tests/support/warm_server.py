"""The warm process of :mod:`warm_processes`: imports everything, then forks what it is asked for."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket

from maggy_like.processes.system import die_with_parent, fork_sibling
from maggy_like.processes.zygote.become import STARTED, become, receive_request

WARM = (
    "maggy_like.distributed.ddp",
    "maggy_like.distributed.parallel",
    "maggy_like.distributed.rendezvous",
    "maggy_like.distributed.sharded",
    "maggy_like.driver.proposers",
    "maggy_like.worker.agent.agent",
    "maggy_like.ablation.modules",
    "optimizers.registry",
    "optimizers.samplers.bayesian",
    "scipy.stats",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
)
"""What the processes import, most of them more than one of these."""


def main(control_fd: int, parent: int) -> None:
    """Import everything, then :func:`serve`."""
    for module in WARM:
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
