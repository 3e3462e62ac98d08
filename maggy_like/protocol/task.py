"""What a worker gets when it is launched: the run, how its caller logs, and the worker's own slot."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

import msgspec


class WorkerId(msgspec.Struct, frozen=True, gc=False):
    """One incarnation of a worker.

    Attributes:
        index: The worker's slot in the gang, from 0.
        incarnation: How often this slot has been launched.
    """

    index: int
    incarnation: int


class HandlerSettings(msgspec.Struct, frozen=True):
    """A handler that shows records to people.

    Attributes:
        level: From which on it takes records.
        formatter: Pickled; empty for none.
    """

    level: int
    formatter: bytes


class LoggerSettings(msgspec.Struct, frozen=True):
    """The settings of one logger.

    Attributes:
        level: Its own; 0 where its parent's counts.
        handlers: Those that show its records.
        propagate: Whether its parents get them too.
    """

    level: int = logging.NOTSET
    handlers: tuple[HandlerSettings, ...] = ()
    propagate: bool = True


class LogSettings(msgspec.Struct, frozen=True):
    """How logging is configured.

    Attributes:
        root: The root logger.
        named: Loggers for which anything is set.
        disabled: Up to which level all records are dropped (see :func:`logging.disable`).
    """

    root: LoggerSettings
    named: dict[str, LoggerSettings] = {}
    disabled: int = logging.NOTSET


Isolation = Literal["process", "worker", "none"]

KeyPair = tuple[bytes, bytes]
"""Public and secret CURVE key, 40 bytes of Z85 text each."""

LOG_PATIENCE = 10.0
"""Seconds that a worker which leaves, and the driver, wait for the last logs to reach the store."""


class DriverProcess(msgspec.Struct, frozen=True):
    """The process in which the driver runs: workers may run on other machines, with other Pythons.

    Attributes:
        host: Name of the machine.
        executable: The Python interpreter.
        python: Its minor version.
        folder: The working folder, in absolute terms.
        own_modules: The user's own modules, which no package brings, by name, and where they lie.
    """

    host: str
    executable: str
    python: str
    folder: str
    own_modules: dict[str, str] = {}


class WorkerTask(msgspec.Struct, frozen=True):
    """All that the workers of one run have in common, and nothing that lets anybody in.

    Attributes:
        address: ZeroMQ address of the driver.
        ipv6: Whether the driver listens at an IPv6 address: a name in ``address`` is resolved to one, if it has any.
        rank_ports: Lowest and highest of the ports at which rank 0 of several may listen; any if None.
        server_key: The driver's public CURVE key.
        run_id: What the run's store is marked with.
        train_fn: The training function, pickled by cloudpickle.
        preload: Modules that the fork server imports once, before any trial.
        sys_path: The driver's module search path; in a worker's child processes, their own.
        argv: The driver's command line, which a trial sees as its own.
        store: URL of the folder that holds the checkpoints.
        logs: Folder for the trials' log files, a path or a URL.
        log_copies: URL of the folder in the store to which workers copy them that do not see ``logs``; empty where
            the run has no such place.
        isolation: ``process`` (a fresh child per trial), ``worker`` (one child for all), ``none``
            (the trial runs in the launching process itself).
        interval: Seconds between two batches of measurements.
        grace: Seconds between telling a trial to stop and killing it.
        report_timeout: Seconds that a trial may go on without a report or a checkpoint.
        returns_anything: Whether the function is no training, so that it may return whatever it likes.
        logging: How logging is configured in the caller's process.
        sources: Text of the files and notebook cells that the function's code is from, by file name.
        silence: Seconds without a word of the driver after which the worker gives up.
        driver: Where the driver runs; None where workers are processes that it has started itself.
        name: The run's name.
        about: What it is, in a few words, for whoever sees its workers in a list of a cluster's jobs.
    """

    address: str
    server_key: bytes
    run_id: str
    train_fn: bytes
    preload: tuple[str, ...]
    sys_path: tuple[str, ...]
    argv: tuple[str, ...]
    store: str
    logs: str
    log_copies: str = ""
    isolation: Isolation = "process"
    interval: float = 0.1
    grace: float = 5.0
    report_timeout: float | None = None
    returns_anything: bool = False
    logging: LogSettings | None = None
    sources: dict[str, str] = {}
    silence: float = 60.0
    driver: DriverProcess | None = None
    ipv6: bool = False
    rank_ports: tuple[int, int] | None = None
    name: str = ""
    about: str = ""

    @property
    def copies_logs(self) -> bool:
        """Whether workers may have to copy the trials' logs to a store."""
        return bool(self.log_copies) or "://" in self.logs

    def __repr__(self) -> str:
        """Without the function's bytes."""
        return f"WorkerTask(address={self.address!r}, run_id={self.run_id!r})"


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's slot. The agent has it, not the processes that run trials.

    Attributes:
        index: Its number in the gang, from 0.
        incarnation: How often this slot has been launched.
        host: Name of the machine.
        keys: Its own CURVE key pair, public and secret. No ``repr`` shows it: a log must not let anybody in.
        accelerators: Addresses of the GPUs that are its own.
    """

    index: int
    incarnation: int
    host: str
    keys: KeyPair = field(repr=False)
    accelerators: tuple[str, ...] = ()
