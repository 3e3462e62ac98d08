"""The local engine: workers are processes of this machine. It starts at once and needs no Java."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Literal

from maggy_like.argument_checks import real, whole
from maggy_like.engines.base import Engine, EngineRun, read_isolation, read_working_directory
from maggy_like.errors import ConfigError, EngineError
from maggy_like.processes.cores import share_of, usable_cores
from maggy_like.processes.system import current_directory, descriptor_limit, open_descriptors
from maggy_like.processes.zygote.client import ForkedProcess, Process, begin_imports, start_module
from maggy_like.protocol.task import KeyPair, WorkerContext, WorkerTask
from maggy_like.rpc.endpoint import Endpoint
from maggy_like.worker.launch import Launch, encode_task, write_behind, write_launch
from optimizers.checks import explains_init, short

KILL_PATIENCE = 10.0
"""Seconds to wait for the end of a killed process."""


class LocalRun(EngineRun):
    """One agent in a separate process."""

    def __init__(self, process: Process, index: int, incarnation: int, log: Path) -> None:
        super().__init__([index], incarnation)
        self._process = process
        self._log = log

    def poll(self) -> str | None:
        status = self._process.poll()
        if status is None:
            return None
        self._close_stdin()
        if status == 0:
            return ""
        if isinstance(self._process, ForkedProcess) and self._process.why:
            return self._process.why
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return f"its process ended with {how}; see {self._log}"

    def cancel(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def wait(self, timeout: float) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._close_stdin()
        return True

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


MOST_WORKERS = 1000
"""More workers are likely a typing error: each has three processes, and they would use up the memory."""

DRIVERS_DESCRIPTORS = 18
"""Files that a driver opens at most: the journal, the optimizer's process, and sockets."""

WORKERS_DESCRIPTORS = 2
"""Files that a driver opens per worker: a pipe and a connection."""


@explains_init
class LocalEngine(Engine):
    """Runs each worker as processes of this machine. Workers get the GPUs in turn, and equal shares of the cores.

    In a trial, libraries that use all cores by default see the worker's share as the number of cores, and so does
    ``os.cpu_count()``. Workers may run on any core.

    Args:
        gpus: Addresses of the GPUs, such as ``["0", "1"]``. Default those of ``CUDA_VISIBLE_DEVICES``, else all.
        cores: Number of CPU cores per worker. Without ``workers``, one worker runs for each such number of cores.
            Default the cores that this process may use, divided by ``workers``.
        gpu_fraction: Share of a GPU per worker, above 0 and at most 1. With 0.25, four workers share each GPU unless
            ``workers`` sets another number. GPU memory is not limited to this share. Default 1.
        isolation: ``"process"`` gives each trial a new process, so that a crash costs only that trial and memory cannot
            leak. ``"worker"`` keeps one process per worker, for trials of milliseconds. Default ``"process"``.
        working_directory: ``"trial"`` to give each trial a working directory of its own, in which relative paths find
            what the caller's has. ``"shared"`` for the caller's, in which trials may overwrite each other's files.
            Default ``"trial"``.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, engine=LocalEngine(gpu_fraction=0.25))  # four workers on each GPU
    """

    name = "local"
    is_on_this_machine = True

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        *,
        cores: int | None = None,
        gpu_fraction: float = 1.0,
        isolation: Literal["process", "worker"] = "process",
        working_directory: Literal["trial", "shared"] = "trial",
    ) -> None:
        if (fraction := real(gpu_fraction)) is None or not 0 < fraction <= 1:
            raise ConfigError(
                f"gpu_fraction must be above 0 and at most 1, got {gpu_fraction!r}; use 0.25, for example"
            )
        if gpus is not None and (isinstance(gpus, str | bytes) or not isinstance(gpus, Sequence)):
            raise ConfigError(f"gpus must be a list of addresses, got {short(gpus)}; use gpus=['0', '1']")
        for address in gpus or ():
            if not isinstance(address, str) or not address.strip():
                raise ConfigError(f"gpus must contain addresses as text, got {short(address)}; use gpus=['0', '1']")
        self.isolation = read_isolation(isolation)
        self._cores = None if cores is None else whole("cores", cores, least=1, remedy="use cores=2, for example")
        self.working_directory = read_working_directory(working_directory)
        self._gpu_fraction = fraction
        self._gpus = tuple(gpus) if gpus is not None else find_gpus()

    def slots(self) -> int | None:
        return None

    def default_workers(self) -> int:
        sharing = int(1 / self._gpu_fraction + 1e-9)
        return len(self._gpus) * sharing or max(1, usable_cores() // (self._cores or 1))

    def require(self, workers: int) -> None:
        super().require(workers)
        current_directory()  # raises if it is deleted; workers start in it
        if workers > MOST_WORKERS:
            raise EngineError(
                f"workers must be at most {MOST_WORKERS} on one machine, got {workers}; use "
                f"workers={usable_cores()} for one per core, or Spark"
            )
        opened, limit = len(open_descriptors()), descriptor_limit()
        if (needed := opened + DRIVERS_DESCRIPTORS + WORKERS_DESCRIPTORS * workers) > limit:
            fit = (limit - opened - DRIVERS_DESCRIPTORS) // WORKERS_DESCRIPTORS
            fewer = f", or pass workers={fit}" if fit > 0 else ""
            raise EngineError(
                f"a search with workers={workers} needs about {needed} open files, and this process may have {limit}; "
                f"raise the limit (ulimit -n {2 * needed}){fewer}"
            )

    def hints(self, workers: int) -> list[str]:
        cores, each = usable_cores(), self._cores or 1
        if workers * each <= cores:
            return []
        noun = f"{cores} cores" if cores > 1 else "one core"
        with_cores = f" with cores={each}" if each > 1 else ""
        fit = max(1, cores // each)
        return [f"{workers} workers{with_cores} share {noun} of this machine; with workers={fit} each has its own"]

    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1")

    def begin_imports(self, preload: Sequence[str]) -> None:
        begin_imports(preload)

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        runs: list[EngineRun] = []
        encoded = encode_task(task)
        with contextlib.ExitStack() as undo:
            for index, pair in zip(indexes, keys, strict=True):
                run = self._launch_one(task, encoded, index, incarnation, pair, Path(logs))
                undo.callback(run.wait, KILL_PATIENCE)
                undo.callback(run.cancel)
                runs.append(run)
            undo.pop_all()
        return runs

    def _launch_one(
        self, task: WorkerTask, encoded: bytes, index: int, incarnation: int, keys: KeyPair, logs: Path
    ) -> EngineRun:
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = logs / f"{index}.log"
        with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as output:
            process = start_module(
                "maggy_like.worker", os.environ, task.sys_path, output=output.fileno(), preload=task.preload
            )
        gpus = (self._gpus[index % len(self._gpus)],) if self._gpus else ()
        cores = self._cores or max(1, usable_cores() // task.workers)
        share = share_of(cores, os.environ)
        context = WorkerContext(index, incarnation, socket.gethostname(), keys, gpus, cores, share)
        assert process.stdin is not None
        write_behind(process.stdin, partial(write_launch, task=encoded, launch=Launch(context, os.getpid())))
        return LocalRun(process, index, incarnation, log)


_GPU = re.compile(r"\d+|(GPU|MIG)-.+")
"""A GPU in ``CUDA_VISIBLE_DEVICES``: its index, or the beginning of its UUID."""


def find_gpus() -> tuple[str, ...]:
    """Return the addresses of this machine's NVIDIA GPUs, without making a CUDA context."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA ignores what follows the first entry that is not a GPU: -1, none or NoDevFiles
        return tuple(takewhile(_GPU.fullmatch, map(str.strip, visible.split(","))))
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if line.strip())
