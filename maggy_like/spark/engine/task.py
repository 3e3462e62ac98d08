"""The function of each Spark task of a search: check the machine and its GPUs, and run an agent."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from maggy_like.errors import EngineError
from maggy_like.processes.cores import OPENMP, share_of, usable_cores
from maggy_like.processes.pickles import dumps
from maggy_like.protocol.messages import own_versions
from maggy_like.protocol.task import KeyPair, WorkerContext, WorkerTask

if TYPE_CHECKING:
    import pyarrow
    from pyspark import TaskContext

TaskFunction = Callable[[Iterator[Any]], Iterator[Any]]
"""Function from the rows or batches of a task to what the job returns."""

UNFIT = "cannot serve this search"
"""Part of the error of a task whose machine lacks something; another launch would end in the same way."""

_REMEDY = (
    "install the driver's maggy_like and what it needs there, send it (--py-files, or an environment with "
    "spark.archives: docs/shipping.md), or set PYSPARK_PYTHON to a Python that has it (the driver runs {})"
)


def entry(function: TaskFunction) -> TaskFunction:
    """Wrap ``function`` so that it can be unpickled without maggy_like, and runs if it can be loaded.

    If Spark loaded ``function`` itself, its error would have neither the machine nor the interpreter. An older
    maggy_like on that machine might even load it, and misread the task.
    """
    payload, load = dumps(function), _loader(UNFIT)

    def run(given: Iterator[Any]) -> Iterator[Any]:
        yield from load(payload)(given)

    return run


class Sent:
    """A function that is unpickled in a task if possible; otherwise the error says what is missing.

    ``unfit`` describes a machine that lacks something: ``cannot serve this search``.
    """

    def __init__(self, function: Callable[..., Any], unfit: str) -> None:
        self._function, self._unfit = function, unfit

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _loader(self._unfit), (dumps(self._function),)


def _loader(unfit: str) -> Callable[[bytes], Any]:
    """Return a function that unpickles; it is pickled by value, and needs only the standard library."""
    versions = own_versions()
    package, home, remedy = versions.package, versions.home, _REMEDY.format(sys.executable)

    def load(payload: bytes) -> Any:
        import importlib
        import pickle
        import socket
        import sys

        loaded, lacks = None, ""
        try:
            maggy_like = importlib.import_module("maggy_like")  # whichever lies there

            if maggy_like.__version__ == package:
                loaded = pickle.loads(payload)  # noqa: S301 (it comes from the driver, as this function does)
            else:
                lacks = (
                    f"the driver has maggy_like {package} ({home}) and the worker {maggy_like.__version__} "
                    f"({maggy_like.__file__})"
                )
        except (ImportError, MemoryError, OSError, AttributeError) as error:
            directories = [it for it in map(str, sys.path) if "lib/python3" not in it or it.endswith("-packages")]
            lacks = f"{type(error).__name__}: {error}; it looks for modules in {', '.join(directories[:8])}"
        if lacks:
            raise ImportError(f"{sys.executable} on {socket.gethostname()} {unfit}: {lacks}; {remedy}")
        return loaded

    return load


QUERY_TIMEOUT_S = 20.0


def gpus_of(context: TaskContext) -> tuple[str, ...]:
    """Return the addresses of the GPUs that a task may use; its trials see only these.

    Raise EngineError if this machine has no GPU of such an address, since CUDA would show fewer GPUs to the trials, or
    none.
    """
    gpu = context.resources().get("gpu")
    addresses = tuple(gpu.addresses) if gpu is not None else ()
    if addresses:
        check_gpus(addresses, listing())
    return addresses


def check_gpus(addresses: tuple[str, ...], listed: str) -> None:
    """Check addresses against the output of ``nvidia-smi -L``; if that is empty, they may be simulated."""
    own = set(re.findall(r"^GPU (\d+):", listed, re.MULTILINE)) | set(re.findall(r"UUID: ([^\s)]+)", listed))
    unknown = [address for address in addresses if own and not any(_names(address, name) for name in own)]
    if unknown:
        raise EngineError(
            f"{socket.gethostname()} {UNFIT}: Spark gave a task GPU {', '.join(unknown)}, and nvidia-smi lists "
            f"{', '.join(sorted(own))} there; correct the discovery script of its Worker or executor "
            "(spark.worker.resource.gpu.discoveryScript, spark.executor.resource.gpu.discoveryScript)"
        )


def _names(address: str, name: str) -> bool:
    """Whether an address is the GPU of that index or UUID; CUDA also accepts the beginning of a UUID."""
    return address == name or (not address.isdigit() and name.startswith(address))


def listing() -> str:
    """Return the output of ``nvidia-smi -L``; empty if there is no such program, or it fails."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout


TOO_FEW_PARTITIONS = (
    "spark.sql.leafNodeDefaultParallelism and spark.default.parallelism must be at least the number of workers, "
    "because Spark makes fewer partitions otherwise; unset them, or increase them"
)


STARTED_AGAIN = -1
"""Result of a task that Spark started again, in place of its worker's index, because its key is used up."""


Row = tuple[int, bytes, bytes]
"""Row of one task: the worker's index, and its key pair."""


def context_of(task: WorkerTask, context: TaskContext, index: int, incarnation: int, keys: KeyPair) -> WorkerContext:
    """Return the slot of the worker that a Spark task runs, with its GPUs and its cores."""
    environment = {name: value for name, value in os.environ.items() if name != OPENMP}  # Spark has set this one
    if task.threads:
        environment[OPENMP] = task.threads
    cores = min(context.cpus(), usable_cores())
    chosen = {name: value for name, value in task.environment.items() if name not in environment}
    share = {**chosen, **share_of(cores, environment)}
    return WorkerContext(index, incarnation, socket.gethostname(), keys, gpus_of(context), cores, share)


def agent_task(task: WorkerTask, incarnation: int) -> Callable[[Iterator[Row]], Iterator[int]]:
    """Return the function that each task runs: an agent, until the search is over.

    Spark retries a task outside of a barrier stage. Such a retry ends at once and without an error, so that its job
    ends too. The driver then replaces the worker by the next incarnation, which has its own key.
    """

    def run(given: Iterator[Row]) -> Iterator[int]:
        from pyspark import TaskContext

        from maggy_like.worker.agent.agent import Agent

        rows = list(given)
        if len(rows) != 1:
            raise EngineError(TOO_FEW_PARTITIONS)
        index, public, secret = rows[0]
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() > 0:
            yield STARTED_AGAIN
            return
        Agent(task, context_of(task, context, index, incarnation, (public, secret))).run()
        yield index

    return run


def in_arrow(
    function: Callable[[Iterator[Row]], Iterator[int]],
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Adapt the function for ``mapInArrow``."""

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        rows = (tuple(row.values()) for batch in batches for row in batch.to_pylist())
        for index in function(rows):
            yield pyarrow.RecordBatch.from_pydict({"worker": [index]})

    return run
