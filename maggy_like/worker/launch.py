"""How an agent's process gets its task: two messages on its stdin, each with its length before it.

A task may hold a gigabyte, since the function brings its data. So it is encoded once for all workers of a launch.
"""

from __future__ import annotations

import pickle
import struct
from typing import IO, BinaryIO

import msgspec

from maggy_like.protocol.task import WorkerContext, WorkerTask

_LENGTH = struct.Struct("!Q")


class Launch(msgspec.Struct, frozen=True):
    """A place, and the process id of the launcher."""

    context: WorkerContext
    parent: int


def encode_task(task: WorkerTask) -> bytes:
    """Encode a task for :func:`write_launch`, pickled: paths and arguments need not be UTF-8."""
    return pickle.dumps(task)


def decode_task(data: bytes) -> WorkerTask:
    """Decode what :func:`encode_task` has made; it comes from the process that has started this one."""
    task: WorkerTask = pickle.loads(data)
    return task


def write_launch(stream: IO[bytes], task: bytes, launch: Launch) -> None:
    """Send a task and its launch; the stream stays open."""
    for data in (task, msgspec.msgpack.encode(launch)):
        write_all(stream, _LENGTH.pack(len(data)))
        write_all(stream, data)
    stream.flush()


def write_all(stream: IO[bytes], data: bytes) -> None:
    """Write all of ``data``: a pipe without a buffer may take a part of it at a time."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def read_launch(stream: BinaryIO) -> tuple[WorkerTask, Launch]:
    """Receive a task and its launch."""
    return decode_task(_read(stream)), msgspec.msgpack.decode(_read(stream), type=Launch)


def _read(stream: BinaryIO) -> bytes:
    (size,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    return stream.read(size)
