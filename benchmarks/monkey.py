"""Whom ``benchmarks.chaos`` strikes, and how: the processes of a run, found by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

MARK = "MAGGY_LIKE_CHAOS"
FROZEN_SECONDS = 20.0
"""Longer than the driver waits for a silent worker: it is declared lost, then wakes."""


@dataclass(frozen=True)
class Supervisor:
    """The processes of a run, as they are now.

    Attributes:
        driver: Runs ``lagom``.
        mark: Value of :data:`MARK` in the environment of all.
    """

    driver: psutil.Process
    mark: str

    def all(self) -> Iterator[psutil.Process]:
        """Every process of the run, wherever it was started."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def fork_servers(self) -> list[psutil.Process]:
        """One of each worker."""
        return [
            process
            for process in self.all()
            if _runs(process, "maggy_like.worker.agent.fork_server") and _is_leader(process)
        ]

    def agents(self) -> list[psutil.Process]:
        """The workers themselves: on Spark its Python workers."""
        return [parent for server in self.fork_servers() if (parent := _parent(server)) is not None]

    def executors(self) -> list[psutil.Process]:
        """Spark's executors."""
        return [process for process in self.all() if _runs(process, "CoarseGrainedExecutorBackend")]


def is_daemon(process: psutil.Process) -> bool:
    """Whether it belongs to the Spark cluster and not to the run."""
    return _runs(process, "org.apache.spark.deploy.master") or _runs(process, "org.apache.spark.deploy.worker.Worker")


def _runs(process: psutil.Process, what: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(what in argument for argument in process.cmdline())
    return False


def _is_leader(process: psutil.Process) -> bool:
    """A fork server and not one of its children, whose command line is the same."""
    parent = _parent(process)
    return parent is not None and not _runs(parent, "maggy_like.worker.agent.fork_server")


def _parent(process: psutil.Process) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        return process.parent()
    return None


def family(process: psutil.Process) -> set[int]:
    """A process and all below it."""
    with contextlib.suppress(psutil.Error):
        return {process.pid, *(child.pid for child in process.children(recursive=True))}
    return {process.pid}


def kill(process: psutil.Process) -> None:
    """``kill -9``; one that has just ended is fine."""
    with contextlib.suppress(psutil.Error):
        process.kill()


def freeze(process: psutil.Process) -> None:
    """``SIGSTOP``, and ``SIGCONT`` once it was declared lost, unless it was killed for that."""

    def wake() -> None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)

    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(FROZEN_SECONDS, wake)
        timer.daemon = True
        timer.start()


def knock(driver: psutil.Process, rng: random.Random) -> None:
    """A stranger at the driver's port: a few kilobytes of nothing that it knows."""
    with contextlib.suppress(psutil.Error, OSError):
        ports = [c.laddr.port for c in driver.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as stranger:
                stranger.sendall(rng.randbytes(rng.randrange(1, 8192)))


Victim = tuple[psutil.Process, Callable[[psutil.Process], None]]


def draw_victim(kind: str, gang: Supervisor, training: set[int], rng: random.Random) -> Victim | None:
    """Who is struck by a fault of a worker, and how; None if there is nobody just now.

    Args:
        training: Process ids of the trials that run.
    """
    match kind:
        case "child killed":
            found, how = [process for process in gang.all() if process.pid in training], kill
        case "fork server killed":
            found, how = gang.fork_servers(), kill
        case "worker killed":
            found, how = gang.agents(), kill
        case "worker frozen":
            found, how = gang.agents(), freeze
        case "executor killed":
            found, how = [process for process in gang.executors() if family(process) & training], kill
        case _:
            raise ValueError(kind)
    found = [process for process in found if process.pid != os.getpid()]
    return (rng.choice(sorted(found, key=lambda process: process.pid)), how) if found else None
