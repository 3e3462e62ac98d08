"""The interfaces of the engines: count slots, launch workers in them, and choose the driver's address."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar, cast

from maggy_like.argument_checks import one_of
from maggy_like.errors import EngineError
from maggy_like.protocol.task import Isolation, KeyPair, WorkerTask, WorkingDirectory
from maggy_like.rpc.endpoint import Endpoint, PortRange
from maggy_like.storage.run_paths import RunPaths

T = TypeVar("T")


class EngineStopped(EngineError):
    """The environment of an engine's workers was stopped from outside, on purpose."""


class EngineRun(ABC):
    """Workers that were launched together, and end together.

    Attributes:
        indexes: Indexes of the workers.
        incarnation: Their incarnation.
        is_hopeless: Whether another launch would end for the same cause.
        details: A file with the cause of their end. Empty if there is none.
        stopped_by: Who ended them from outside on purpose, such as a user who cancelled their Spark job. Set once
            :meth:`poll` reports their end. Empty if they ended otherwise, for example by :meth:`cancel`.
        has_come: Whether any of them has connected to the driver.
        leaving: Why their machine is about to be removed. Empty if it is not, as far as the engine knows.
        with_node: Whether they ended because their machine was removed, or may have been.
        is_cut_off: Whether they ended because one of them could not reach the driver.
        given_up: Workers that were launched with these and were removed from :attr:`indexes`. The driver no longer
            waits for them, and the others continue. Their slots may stay occupied until all others have ended.
    """

    is_hopeless = False
    stopped_by = ""
    details = ""
    has_come = False
    leaving = ""
    with_node = False
    is_cut_off = False

    def __init__(self, indexes: Sequence[int], incarnation: int) -> None:
        self.indexes = tuple(indexes)
        self.incarnation = incarnation
        self.given_up: set[int] = set()

    def give_up(self, index: int) -> None:
        """Abandon one of several workers, and continue with the others."""
        self.indexes = tuple(other for other in self.indexes if other != index)
        self.given_up.add(index)

    @abstractmethod
    def poll(self) -> str | None:
        """Return None while the workers run, else why they ended. Empty if they left normally.

        If trials run in the calling thread, this runs at most one of them, if one is assigned.
        """

    @property
    def is_in_function(self) -> bool:
        """Whether :meth:`poll` is calling the training function now."""
        return False

    def end_trials(self) -> None:
        """Prevent further calls of the training function by :meth:`poll`, since the run ends."""

    @abstractmethod
    def cancel(self) -> None:
        """Begin to end the workers by force. Returns at once."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the end of the workers, and return whether they have ended."""


def read_working_directory(working_directory: str) -> WorkingDirectory:
    """Check the working directory of trials."""
    return cast(WorkingDirectory, one_of("working_directory", working_directory, ("trial", "shared")))


def read_isolation(isolation: str) -> Isolation:
    """Check the isolation of an engine that starts processes."""
    return cast(Isolation, one_of("isolation", isolation, ("process", "worker")))


class Capacity(ABC):
    """Counts the slots in which workers can run."""

    name: str
    is_on_this_machine = False
    """Whether the workers run on this machine, with the packages that are installed here."""

    @property
    def is_elastic(self) -> bool:
        """Whether slots come and go, so that a run starts with the existing ones, and grows."""
        return False

    @abstractmethod
    def slots(self) -> int | None:
        """Return how many workers can run in parallel. None without a limit."""

    @abstractmethod
    def default_workers(self) -> int:
        """Return the number of workers if the caller gives none."""

    def most_workers(self) -> int | None:
        """Return how many workers an elastic engine can grow to. None without a limit."""
        return None

    def check_workers(self, together: str) -> None:
        """Check that workers can start in the way that a run needs.

        ``together`` is why several workers run one trial, such as ``workers_per_trial=2``, or empty if none do.
        """
        return

    def require(self, workers: int) -> None:
        """Check that this number of workers can run."""
        slots = self.slots()
        if slots is not None and workers > slots:
            known = f"{slots} slot{'s' * (slots != 1)}"
            raise EngineError(f"workers={workers} but engine={self.name!r} has {known}; pass workers={slots}")

    def hints(self, workers: int) -> list[str]:
        """Return hints about this number of workers, one per line."""
        return []


class Launcher(Capacity):
    """Launches workers in the slots that it counts."""

    def begin_imports(self, preload: Sequence[str]) -> None:
        """Begin to import the modules that workers import once, while the driver starts. Returns at once."""
        return

    @abstractmethod
    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        """Launch an agent for each of the worker indexes, with a key pair that no other worker has.

        Its output goes to the directory ``logs``, if the engine writes any.
        """

    def attend(self, runs: Sequence[EngineRun]) -> None:
        """Check what was launched. Called often during a search, from the thread that launches."""
        return

    def await_work(self, runs: Sequence[EngineRun], over: threading.Event, seconds: float) -> None:
        """Wait up to ``seconds`` until the thread that launches may have work, or the search has ended (``over``)."""
        over.wait(seconds)

    def waits_for(self, workers: int, came: int) -> str:
        """Return in a few words why some launched workers have not connected yet. Empty if the reason is unknown.

        Of ``workers``, so many ``came``.
        """
        return ""


class Engine(Launcher):
    """Runs the workers of a search: provides their slots, launches them, and chooses the driver's address."""

    isolation: Isolation = "process"
    """``process``: each trial has a new process, so that a crash costs only that trial and memory cannot leak.
    ``worker``: each worker has one process, for trials of milliseconds. ``none``: trials run in this process."""
    working_directory: WorkingDirectory = "trial"
    """``trial``: each trial has a working directory of its own; ``shared``: all have that of their worker."""
    rank_ports: PortRange | None = None
    """Ports for rank 0 of workers that train together. None for any free port."""

    def renewed(self) -> Engine:
        """Return the engine for another run: this one, or one like it if the environment of this one was stopped."""
        return self

    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Return where the driver listens, and the address to which its workers connect."""

    def inheriting(self, execute: Callable[[], T]) -> Callable[[], T]:
        """Return ``execute`` for another thread, with what the engine keeps for the calling thread."""
        return execute

    def interruptible(self) -> AbstractContextManager[None]:
        """Let Ctrl-C also end an endless wait of a function, if functions run in the calling thread."""
        return contextlib.nullcontext()

    def path_hints(self, paths: RunPaths) -> list[str]:
        """Return hints about the paths of a run, one per line."""
        return []
