"""What a worker gets when it is launched: the run, the caller's logging, and the worker's slot."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

import msgspec


class WorkerId(msgspec.Struct, frozen=True, gc=False):
    """One incarnation of a worker.

    Attributes:
        index: The worker's slot, from 0.
        incarnation: How often this slot has been launched.
    """

    index: int
    incarnation: int


class HandlerSettings(msgspec.Struct, frozen=True):
    """A handler that shows records to people.

    Attributes:
        formatter: The pickled formatter; empty for none.
    """

    level: int
    formatter: bytes


class LoggerSettings(msgspec.Struct, frozen=True):
    """The settings of one logger.

    Attributes:
        level: The logger's own level; 0 if it has its parent's.
        handlers: The handlers that show its records.
        propagate: Whether its parents' handlers get its records too.
    """

    level: int = logging.NOTSET
    handlers: tuple[HandlerSettings, ...] = ()
    propagate: bool = True


class WarningFilter(msgspec.Struct, frozen=True):
    """A filter of :mod:`warnings`.

    Attributes:
        action: What happens to the warnings.
        message: Pattern of the beginning of their text; empty for any.
        category: Their class, pickled.
        package: The package that defines the class.
        module: Pattern of the modules that warn; empty for any.
        line: The line that warns; 0 for any.
    """

    action: str
    message: str
    category: bytes
    package: str
    module: str
    line: int


class LogSettings(msgspec.Struct, frozen=True):
    """How logging and warnings are configured.

    Attributes:
        root: The root logger.
        named: The settings of other loggers, by name, except default ones.
        disabled: The level up to which all records are dropped (see :func:`logging.disable`).
        warnings: Filters of warnings, in the order in which they apply.
    """

    root: LoggerSettings
    named: dict[str, LoggerSettings] = {}
    disabled: int = logging.NOTSET
    warnings: tuple[WarningFilter, ...] = ()


Isolation = Literal["process", "worker", "none"]

KeyPair = tuple[bytes, bytes]
"""Public and secret CURVE key, 40 bytes of Z85 text each."""

LOG_PATIENCE = 10.0
"""Seconds that a leaving worker and the driver wait for the last logs to reach the store."""


class DriverProcess(msgspec.Struct, frozen=True):
    """The driver's process, since workers may run on other machines and other Pythons.

    Attributes:
        host: Name of the machine.
        executable: The Python interpreter.
        python: Its minor version.
        folder: The absolute path of the working folder.
        own_modules: The paths of the user's own modules, which are not of an installed package, by name.
    """

    host: str
    executable: str
    python: str
    folder: str
    own_modules: dict[str, str] = {}


class WorkerTask(msgspec.Struct, frozen=True):
    """The settings that all workers of a run share. They contain no secret.

    Attributes:
        address: ZeroMQ address of the driver.
        ipv6: Whether the driver listens at an IPv6 address, to which a name in ``address`` is resolved if possible.
        rank_ports: Lowest and highest port on which rank 0 of several may listen; any if None.
        server_key: The driver's public CURVE key.
        run_id: The mark in the run's store.
        train_fn: The training function, pickled by cloudpickle.
        preload: Modules that the fork server imports once, before any trial.
        sys_path: The driver's module search path; in a worker's child processes, the worker's.
        argv: The driver's command line, which is also ``sys.argv`` in a trial.
        store: URL of the folder that holds the checkpoints.
        logs: Folder for the trials' log files, a path or a URL.
        log_copies: URL of the folder in the store to which workers that do not see ``logs`` copy the files; empty if
            the run has none.
        isolation: ``process`` (a fresh child per trial), ``worker`` (one child for all), ``none``
            (the trial runs in the launching process itself).
        interval: Seconds between two batches of measurements.
        grace: Seconds between the request that a trial stops and its kill.
        report_timeout: Seconds that a trial may run without a report or a checkpoint.
        returns_anything: Whether the function was given to ``run``, so that it may return any value.
        logging: The logging settings of the caller's process.
        sources: Text of the files and notebook cells of the function's code, by file name.
        silence: Seconds without a message of the driver after which the worker gives up.
        driver: The driver's process; None if it started the workers itself.
        name: The run's name.
        about: A short description of the run for a cluster's list of jobs.
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
        return bool(self.log_copies) or "://" in self.logs

    def __repr__(self) -> str:
        """Without the function's bytes."""
        return f"WorkerTask(address={self.address!r}, run_id={self.run_id!r})"


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's slot. The agent has it, not the processes that run trials.

    Attributes:
        index: Number of the slot, from 0.
        incarnation: How often this slot has been launched.
        host: Name of the machine.
        keys: The worker's own CURVE key pair, public and secret; not in ``repr``, so that no log shows it.
        accelerators: Addresses of the worker's GPUs.
    """

    index: int
    incarnation: int
    host: str
    keys: KeyPair = field(repr=False)
    accelerators: tuple[str, ...] = ()
