"""The protocols of the engines: count slots, launch workers in them, and say where the driver listens."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from maggy_like.argument_checks import one_of
from maggy_like.errors import EngineError
from maggy_like.protocol.task import Isolation, KeyPair, WorkerTask
from maggy_like.rpc.endpoint import Endpoint, PortRange
from maggy_like.storage.run_paths import RunPaths

T = TypeVar("T")


class EngineStopped(EngineError):
    """What an engine's workers run in was stopped from outside, on purpose."""


class EngineRun(ABC):
    """Some workers that were launched together, and end together.

    Attributes:
        indexes: Their indexes in the gang.
        incarnation: Their incarnation.
        is_hopeless: Whether they ended for a cause that another launch would meet again.
        details: The file that says more about why they ended; empty if there is none.
        stopped_by: Who ended them from outside, on purpose, once :meth:`poll` says that they ended: the user of a Spark
            cluster who cancelled their job, say. Empty where they ended otherwise, also by :meth:`cancel`.
        has_come: Whether any of them has connected to the driver.
        leaving: Why their machine is about to be taken away; empty if it is not, as far as the engine knows.
        with_node: Whether they ended because their machine was taken away, or may have been.
        is_cut_off: Whether they ended because one of them could not reach the driver.
        given_up: Workers that were launched with these and are none of :attr:`indexes` any more: the driver hears
            nothing of them, and the others go on. Their slots may be held until all others have ended.
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
        """Let one of several workers be, and go on with the others."""
        self.indexes = tuple(other for other in self.indexes if other != index)
        self.given_up.add(index)

    @abstractmethod
    def poll(self) -> str | None:
        """None while the workers run, else why they ended (empty when they simply left).

        Where trials run in the calling thread, it runs at most one, and none where none is assigned yet.
        """

    @property
    def is_in_function(self) -> bool:
        """Whether :meth:`poll` is calling the training function just now."""
        return False

    def end_trials(self) -> None:
        """Have :meth:`poll` call no training function any more: the run ends."""

    @abstractmethod
    def cancel(self) -> None:
        """Begin to end the workers by force; returns at once."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the workers to end; whether they have."""


def read_isolation(isolation: str) -> Isolation:
    """The isolation that an engine of processes was given.

    Raises:
        ConfigError: There is none of that name.
    """
    return cast(Isolation, one_of("isolation", isolation, ("process", "worker")))


class Capacity(ABC):
    """Counts the slots in which workers can run."""

    name: str
    is_on_this_machine = False
    """Whether the workers run here, with the packages that are installed here."""

    @property
    def is_elastic(self) -> bool:
        """Whether slots come and go by themselves: a gang starts with those that there are, and grows."""
        return False

    @abstractmethod
    def slots(self) -> int | None:
        """How many workers can run side by side; None when there is no bound."""

    @abstractmethod
    def default_workers(self) -> int:
        """Size of the gang when the caller names none."""

    def most_workers(self) -> int | None:
        """How many workers an elastic engine can come to; None where nothing bounds it."""
        return None

    def check_gang(self, together: str) -> None:
        """Check that workers can start in the way that a run needs.

        Args:
            together: What has several workers run one trial, such as ``workers_per_trial=2``; empty if nothing.

        Raises:
            EngineError: They cannot.
        """
        return

    def require(self, workers: int) -> None:
        """Check that a gang of this size can run.

        Raises:
            EngineError: There are too few slots; the message has both numbers.
        """
        slots = self.slots()
        if slots is not None and workers > slots:
            room = f"{slots} slot{'s' * (slots != 1)}"
            raise EngineError(f"workers={workers} but engine={self.name!r} has {room}; pass workers={slots}")

    def hints(self, workers: int) -> list[str]:
        """Hints about a gang of this size, one a line."""
        return []


class Launcher(Capacity):
    """Launches workers in the slots that it counts."""

    def begin_imports(self, preload: Sequence[str]) -> None:
        """Let imports begin that the workers will need, while the driver gets ready; returns at once.

        Args:
            preload: Modules that they import once.
        """
        return

    @abstractmethod
    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        """Launch an agent for each of the worker indexes.

        Args:
            task: What the run is.
            indexes: The indexes of the workers in the gang.
            incarnation: Their incarnation.
            keys: The key pair of each, which no other is to have.
            logs: Folder for the agents' own output, where the engine writes one.
        """

    def attend(self, runs: Sequence[EngineRun]) -> None:
        """Look after what was launched: called often while a search runs, from the thread that launches."""
        return

    def await_work(self, runs: Sequence[EngineRun], over: threading.Event, seconds: float) -> None:
        """Wait until there may be something for the thread that launches.

        Args:
            runs: What was launched.
            over: Set when the search is over.
            seconds: How long to wait at most.
        """
        over.wait(seconds)

    def waits_for(self, workers: int, came: int) -> str:
        """Say in a few words why some launched workers have not connected yet; empty if that is not known.

        Args:
            workers: How many were launched.
            came: How many have connected.
        """
        return ""


class Engine(Launcher):
    """Runs the workers of a search: provides their slots, launches them, and knows how they reach the driver."""

    isolation: Isolation = "process"
    """``process`` gives each trial a fresh process, so that a crash costs that trial alone and memory never leaks on;
    ``worker`` keeps one process per worker, for trials of milliseconds; ``none`` runs trials in this process."""
    rank_ports: PortRange | None = None
    """Where rank 0 of workers that train together may listen; any free port if None."""

    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Where the driver is to listen, and the address at which its workers connect."""

    def inheriting(self, execute: Callable[[], T]) -> Callable[[], T]:
        """What executes a run in another thread, with all that the engine keeps for the thread that calls this."""
        return execute

    def path_hints(self, paths: RunPaths) -> list[str]:
        """Hints about where a run is kept, one a line."""
        return []
