"""What a zygote is asked for, and how that travels: four bytes of length beside the descriptors, then the request."""

from __future__ import annotations

import array
import pickle
import socket
import struct

import msgspec

MAX_DESCRIPTORS = 16

STARTED = struct.Struct("!i")
"""The answer, on a pipe of the request's own: the new process's id."""

NO_FORK = -1
"""In place of an id, where the system forks for no other process."""

_LENGTH = struct.Struct("!I")


class Request(msgspec.Struct, frozen=True):
    """A process to start: ``python -m module arguments``, as a fork that has imported much of it already.

    Attributes:
        module: What runs as ``__main__``.
        arguments: Its arguments.
        environment: All of it.
        folder: The working folder.
        targets: The numbers that the descriptors beside this message get.
        preload: Modules of installed packages that it will import; what can be is imported before the fork.
        safe_path: Whether the working folder is not searched for modules (Python's ``-P``).
    """

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    targets: tuple[int, ...]
    preload: tuple[str, ...] = ()
    safe_path: bool = False


def send(sock: socket.socket, request: Request, descriptors: list[int]) -> None:
    """Send a request, and duplicates of descriptors.

    Raises:
        OSError: The other end is gone, or takes nothing.
    """
    data = pickle.dumps(request)  # as no other encoding takes names of files that are no UTF-8
    sock.sendmsg([_LENGTH.pack(len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    sock.sendall(data)


def receive(sock: socket.socket) -> tuple[Request, list[int]] | None:
    """Wait for a request; None when the other end is gone."""
    size, ancillary, _, _ = sock.recvmsg(_LENGTH.size, socket.CMSG_LEN(MAX_DESCRIPTORS * 4), socket.MSG_WAITALL)
    if len(size) < _LENGTH.size:
        return None
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    data = sock.recv(_LENGTH.unpack(size)[0], socket.MSG_WAITALL)
    asked: Request = pickle.loads(data)  # noqa: S301 (it comes from the owner, which says what is run)
    return asked, list(descriptors)
