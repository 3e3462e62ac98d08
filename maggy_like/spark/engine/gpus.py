"""The GPUs that Spark gave a task, checked against those of its machine."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

from maggy_like.errors import EngineError
from maggy_like.spark.engine.entry import UNFIT

if TYPE_CHECKING:
    from pyspark import TaskContext

QUERY_TIMEOUT_S = 20.0


def gpus_of(context: TaskContext) -> tuple[str, ...]:
    """The addresses of the GPUs that a task may use; its trials see these and no others.

    Raises:
        EngineError: This machine has no GPU of such an address, so CUDA would show fewer to the trials, or none.
    """
    gpu = context.resources().get("gpu")
    addresses = tuple(gpu.addresses) if gpu is not None else ()
    if addresses:
        check_gpus(addresses, listing())
    return addresses


def check_gpus(addresses: tuple[str, ...], listed: str) -> None:
    """Check addresses against what ``nvidia-smi -L`` prints; where it prints nothing, they may be made up.

    Raises:
        EngineError: An address is in no line of it.

    Example:
        >>> check_gpus(("0",), "GPU 0: NVIDIA A100 (UUID: GPU-4e1f)")
    """
    own = set(re.findall(r"^GPU (\d+):", listed, re.MULTILINE)) | set(re.findall(r"UUID: ([^\s)]+)", listed))
    unknown = [address for address in addresses if own and not any(_names(address, name) for name in own)]
    if unknown:
        raise EngineError(
            f"{socket.gethostname()} {UNFIT}: Spark gave a task GPU {', '.join(unknown)}, and nvidia-smi lists "
            f"{', '.join(sorted(own))} there; correct the discovery script of its Worker or executor "
            "(spark.worker.resource.gpu.discoveryScript, spark.executor.resource.gpu.discoveryScript)"
        )


def _names(address: str, name: str) -> bool:
    """Whether an address means the GPU of that index or UUID; CUDA takes the beginning of a UUID too."""
    return address == name or (not address.isdigit() and name.startswith(address))


def listing() -> str:
    """What ``nvidia-smi -L`` prints here; empty where there is no such program, or it fails."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout
