"""Scripts under ``torchrun``, to compare with."""

from __future__ import annotations

import subprocess
import sys

ABORTED = "terminate called without an active exception"
"""How about one process in forty ends that torchrun has started, once all its work is done: a thread of gloo asks for
Python's lock while Python shuts down (torch 2.13). It is not ours, whose processes leave without a shutdown."""


def under_torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script with its arguments on two ranks, which meet at a free port; again if one was aborted at its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(4):
        done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        if ABORTED not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done
