"""Network namespaces: machines that reach each other, or do not, on one machine. They need root and ``ip``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platforms.leftovers import MARK, namespace_prefix
from platforms.searching import Outcome


@dataclass(frozen=True)
class Machine:
    """A namespace behind a pair of virtual interfaces.

    Attributes:
        name: Its name.
        here: The address of our end of the pair.
        there: The address of its own end.
    """

    name: str
    here: str
    there: str

    @property
    def command(self) -> list[str]:
        """What runs a program there."""
        return ["ip", "netns", "exec", self.name]


def new_name() -> str:
    """The name of another namespace of this setting."""
    return namespace_prefix(os.environ.get(MARK, "")) + secrets.token_hex(2)


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """A namespace that reaches this machine, and is reached from it."""
    number = secrets.randbelow(250) + 1
    name = new_name()
    made = Machine(name, f"10.214.{number}.1", f"10.214.{number}.2")
    here, there = f"{name}h", f"{name}t"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for command in (
            f"ip link add {here} type veth peer name {there} netns {name}",
            f"ip addr add {made.here}/24 dev {here}",
            f"ip link set {here} up",
            f"ip -n {name} addr add {made.there}/24 dev {there}",
            f"ip -n {name} link set {there} up",
            f"ip -n {name} link set lo up",
        ):
            subprocess.run(command.split(), check=True)
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)  # takes the pair with it


@contextlib.contextmanager
def secluded() -> Iterator[Machine]:
    """A namespace that nobody reaches, and that reaches nobody, but for :func:`tunnel`."""
    name = new_name()
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Machine(name, "", "127.0.0.1")
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as made, socket.socket(fileno=int(sys.argv[1])) as parent:
    socket.send_fds(parent, [b"-"], [made.fileno()])
"""


@contextlib.contextmanager
def tunnel(on: Machine, port: int) -> Iterator[int]:
    """A port on another machine that leads to one of this machine; connections are made from there alone."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*on.command, sys.executable, "-c", LISTEN, str(theirs.fileno())]
        subprocess.run(command, pass_fds=[theirs.fileno()], check=True)
        [descriptor] = socket.recv_fds(ours, 1, 1)[1]
    with socket.socket(fileno=descriptor) as entrance:
        threading.Thread(target=_serve, args=(entrance, port), daemon=True).start()
        yield entrance.getsockname()[1]


def _serve(entrance: socket.socket, port: int) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            there, _ = entrance.accept()
            here = socket.create_connection(("127.0.0.1", port))
            for source, sink in ((there, here), (here, there)):
                threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def client(on: Machine, url: str, **settings: Any) -> Outcome:
    """Search twice from another machine; ``settings`` are those of ``lagom``."""
    file = Path("client.json").resolve()
    command = [*on.command, sys.executable, "-m", "platforms.client"]
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_REMOTE"}
    done = subprocess.run([*command, url, str(file), json.dumps(settings)], env=environment)
    return Outcome.read(file) if file.exists() else Outcome([f"the client ended with status {done.returncode}"])
