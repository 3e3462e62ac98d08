"""Pass a task to a worker's processes, and the place of the files that Spark has distributed.

An agent's process gets its task in two messages on its stdin, each preceded by its length.

A task may take a gigabyte, because the function includes its data. So it is encoded once for all workers of a launch.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
import threading
from collections.abc import Callable, MutableMapping
from typing import IO, BinaryIO

import msgspec

from maggy_like.protocol.task import WorkerContext, WorkerTask

_LENGTH = struct.Struct("!Q")


class Launch(msgspec.Struct, frozen=True):
    """A worker's place, and the process id of the launcher."""

    context: WorkerContext
    parent: int


def encode_task(task: WorkerTask) -> bytes:
    """Encode a task for :func:`write_launch` by pickle, because paths and arguments need not be UTF-8."""
    return pickle.dumps(task)


def decode_task(data: bytes) -> WorkerTask:
    """Decode the result of :func:`encode_task`, which comes from the process that has started this one."""
    task: WorkerTask = pickle.loads(data)
    return task


def write_launch(stream: IO[bytes], task: bytes, launch: Launch) -> None:
    """Send a task and its launch; the stream stays open. It may wait for a reader (see :func:`write_behind`)."""
    for data in (task, msgspec.msgpack.encode(launch)):
        write_all(stream, _LENGTH.pack(len(data)))
        write_all(stream, data)
    stream.flush()


def write_all(stream: IO[bytes], data: bytes) -> None:
    """Write all of ``data``: an unbuffered pipe may accept only a part at a time."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def write_behind(stream: IO[bytes], write: Callable[[IO[bytes]], None]) -> None:
    """Write to a new process in a thread, because it may read late: the zygote that forks it may be importing.

    The thread has a descriptor of its own, so that the caller may close ``stream`` at any time. If the process has
    died, the rest is dropped.
    """
    own = open(os.dup(stream.fileno()), "wb", 0)  # noqa: SIM115 (the thread closes it)

    def write_and_close() -> None:
        with own, contextlib.suppress(BrokenPipeError):
            write(own)

    threading.Thread(target=write_and_close, name="maggy-launch", daemon=True).start()


def read_launch(stream: BinaryIO) -> tuple[WorkerTask, Launch]:
    """Receive a task and its launch."""
    return decode_task(_read(stream)), msgspec.msgpack.decode(_read(stream), type=Launch)


def _read(stream: BinaryIO) -> bytes:
    (size,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    return stream.read(size)


_MODULE = "pyspark.core.files"
_DIRECTORY = "MAGGY_LIKE_SPARK_FILES"


def pass_on_spark_files(environment: MutableMapping[str, str]) -> None:
    """Pass the location of the files to processes with this environment, if this is a Spark task."""
    files = sys.modules.get(_MODULE)
    if files is not None and files.SparkFiles._is_running_on_worker:
        environment[_DIRECTORY] = os.path.abspath(files.SparkFiles._root_directory)


def take_over_spark_files() -> None:
    """Set the location in ``SparkFiles``, if it was passed on and PySpark is imported."""
    files, directory = sys.modules.get(_MODULE), os.environ.get(_DIRECTORY)
    if files is not None and directory is not None:
        files.SparkFiles._root_directory, files.SparkFiles._is_running_on_worker = directory, True
