"""How an agent's process gets its task: one length-prefixed message on its stdin."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

from maggy_like.protocol.task import WorkerContext, WorkerTask

_LENGTH = struct.Struct("!I")


class Launch(msgspec.Struct, frozen=True):
    """A task, a place, and the process id of the launcher."""

    task: WorkerTask
    context: WorkerContext
    parent: int


def write_launch(stream: BinaryIO, launch: Launch) -> None:
    """Send it; the stream stays open."""
    data = msgspec.msgpack.encode(launch)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_launch(stream: BinaryIO) -> Launch:
    """Receive it."""
    (size,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    return msgspec.msgpack.decode(stream.read(size), type=Launch)
