"""Processes of this machine: the engine without a Spark session. No JVM, starts at once."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from maggy_like.engines.base import Engine, EngineRun, read_isolation
from maggy_like.errors import ConfigError, EngineError
from maggy_like.processes.descriptors import descriptor_limit, open_descriptors
from maggy_like.processes.module_path import python_path
from maggy_like.processes.working_folder import working_folder
from maggy_like.processes.zygote.client import begin_imports, start_module
from maggy_like.processes.zygote.process import ForkedProcess, Process
from maggy_like.protocol.task import KeyPair, WorkerContext, WorkerTask
from maggy_like.rpc.endpoint import Endpoint
from maggy_like.worker.launch import Launch, encode_task, write_launch
from optimizers.checks.options import short

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity mask, and no more than its control group's quota.

    A quota of one and a half cores counts as two; at least one is always there.

    Example:
        >>> 1 <= usable_cores() <= os.cpu_count()
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas()])))


def _quotas() -> Iterator[float]:
    """What each control group that this process is in, its parents included, grants; in cores."""
    for folder in _groups("0:", _CGROUPS):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no quota
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
    for folder in _groups(r"\d+:(?:[^:\n]*,)?cpu(?:,[^:\n]*)?", _CGROUPS / "cpu"):
        with contextlib.suppress(OSError, ValueError):
            granted = int((folder / "cpu.cfs_quota_us").read_text())
            if granted > 0:  # -1: no quota
                yield granted / int((folder / "cpu.cfs_period_us").read_text())


def _groups(hierarchy: str, root: Path) -> Iterator[Path]:
    """The folders of this process's groups in a hierarchy; a container sees its own group as the root."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{hierarchy}:/(.*)$", _OWN.read_text(), re.MULTILINE):
            own = root / found[1]
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder != root)
    yield root


KILL_PATIENCE = 10.0
"""Seconds that a process which was killed is waited for."""


class LocalRun(EngineRun):
    """One agent in a process of its own."""

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
"""More are a slip of the keyboard: each is three processes, and they would take the machine's memory."""

DRIVERS_DESCRIPTORS = 18
"""What a driver opens at most, beside what its process has: the journal, the optimizer's process, sockets."""

WORKERS_DESCRIPTORS = 2
"""A pipe and a connection."""


class LocalEngine(Engine):
    """Runs each worker as processes of this machine; GPUs are shared out in turn.

    Args:
        gpus: Their addresses; those that ``CUDA_VISIBLE_DEVICES`` or ``nvidia-smi`` names if not given.
        gpu_fraction: How much of a GPU a worker needs: with a quarter, four share each unless ``workers`` says
            otherwise. Nothing holds a trial to its share of the memory.
        isolation: ``"process"`` gives each trial a fresh process (a crash costs that trial alone, memory never leaks
            on); ``"worker"`` keeps one process per worker, for trials of milliseconds.

    Raises:
        ConfigError: The fraction is not between 0 and 1, or the isolation is unknown.

    Example:
        >>> lagom(train_fn, space, engine=LocalEngine(gpu_fraction=0.25))
    """

    name = "local"
    is_on_this_machine = True

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        *,
        gpu_fraction: float = 1.0,
        isolation: Literal["process", "worker"] = "process",
    ) -> None:
        if isinstance(gpu_fraction, bool) or not isinstance(gpu_fraction, int | float) or not 0 < gpu_fraction <= 1:
            raise ConfigError(f"gpu_fraction must be above 0 and at most 1, got {gpu_fraction!r}; 0.25: 4 share one")
        if gpus is not None and (isinstance(gpus, str | bytes) or not isinstance(gpus, Sequence)):
            raise ConfigError(f"gpus must be a list of addresses, got {short(gpus)}; use gpus=['0', '1']")
        for address in gpus or ():
            if not isinstance(address, str) or not address.strip():
                raise ConfigError(f"gpus has {short(address)} among its addresses; use texts, as in gpus=['0', '1']")
        self.isolation = read_isolation(isolation)
        self._gpu_fraction = gpu_fraction
        self._gpus = tuple(gpus) if gpus is not None else find_gpus()

    def slots(self) -> int | None:
        return None

    def default_workers(self) -> int:
        sharing = int(1 / self._gpu_fraction + 1e-9)
        return len(self._gpus) * sharing or usable_cores()

    def require(self, workers: int) -> None:
        super().require(workers)
        working_folder()  # in which they start
        if workers > MOST_WORKERS:
            raise EngineError(
                f"workers={workers} on one machine, and {MOST_WORKERS} are the most that are launched there; pass "
                f"workers={usable_cores()} for one on each of its cores, or use Spark"
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
        cores = usable_cores()
        if workers <= cores:
            return []
        noun = f"{cores} cores" if cores > 1 else "one core"
        return [f"{workers} workers share {noun} of this machine; with workers={cores} each has its own"]

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
        environment = dict(os.environ)
        environment["PYTHONPATH"] = python_path(task.sys_path)
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = logs / f"{index}.log"
        with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as output:
            process = start_module("maggy_like.worker", environment, output=output.fileno(), preload=task.preload)
        gpus = (self._gpus[index % len(self._gpus)],) if self._gpus else ()
        context = WorkerContext(index, incarnation, socket.gethostname(), keys, gpus)
        with contextlib.suppress(BrokenPipeError):  # it died at once; poll() reports it
            assert process.stdin is not None
            write_launch(process.stdin, encoded, Launch(context, os.getpid()))
        return LocalRun(process, index, incarnation, log)


def find_gpus() -> tuple[str, ...]:
    """Addresses of this machine's NVIDIA GPUs, without a CUDA context."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(address.strip() for address in visible.split(",") if address.strip() not in ("", "-1"))
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if line.strip())
