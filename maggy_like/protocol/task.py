"""What a worker gets when it is launched: the run, the caller's logging, and the worker's slot."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

import msgspec


class WorkerId(msgspec.Struct, frozen=True, gc=False):
    """One incarnation of a worker."""

    index: int  # the worker's slot, from 0
    incarnation: int  # how often this slot has been launched


class HandlerSettings(msgspec.Struct, frozen=True):
    """A handler that shows records to people."""

    level: int
    formatter: bytes  # the pickled formatter; empty for none


class LoggerSettings(msgspec.Struct, frozen=True):
    """The settings of one logger."""

    level: int = logging.NOTSET  # the logger's own level; 0 if it has its parent's
    handlers: tuple[HandlerSettings, ...] = ()  # the handlers that show its records
    propagate: bool = True  # whether its parents' handlers get its records too


class WarningFilter(msgspec.Struct, frozen=True):
    """A filter of :mod:`warnings`."""

    action: str  # what happens to the warnings
    message: str  # pattern of the beginning of their text; empty for any
    category: bytes  # their class, pickled
    package: str  # the package that defines the class
    module: str  # pattern of the modules that warn; empty for any
    line: int  # the line that warns; 0 for any


class LogSettings(msgspec.Struct, frozen=True):
    """How logging and warnings are configured."""

    root: LoggerSettings  # the root logger
    named: dict[str, LoggerSettings] = {}  # the settings of other loggers, by name, except default ones
    disabled: int = logging.NOTSET  # the level up to which all records are dropped (see :func:`logging.disable`)
    warnings: tuple[WarningFilter, ...] = ()  # filters of warnings, in the order in which they apply


Isolation = Literal["process", "worker", "none"]

WorkingDirectory = Literal["trial", "shared"]

KeyPair = tuple[bytes, bytes]
"""Public and secret CURVE key, 40 bytes of Z85 text each."""

FILES_PATIENCE = 300.0
"""Seconds that a leaving worker and the driver wait for the last files of trials to reach the store."""

LOG_PATIENCE = 10.0
"""Seconds that a leaving worker and the driver wait for the last logs to reach the store."""


class DriverProcess(msgspec.Struct, frozen=True):
    """The driver's process, since workers may run on other machines and other Pythons."""

    host: str  # name of the machine
    executable: str  # the Python interpreter
    python: str  # its minor version
    directory: str  # the absolute path of the working directory
    own_modules: dict[str, str] = {}  # paths of the user's own modules (not of an installed package), by name


class WorkerTask(msgspec.Struct, frozen=True):
    """The settings that all workers of a run share. They contain no secret."""

    address: str  # ZeroMQ address of the driver
    server_key: bytes  # the driver's public CURVE key
    run_id: str  # the mark in the run's store
    train_fn: bytes  # the training function, pickled by cloudpickle
    preload: tuple[str, ...]  # modules that the fork server imports once, before any trial
    sys_path: tuple[str, ...]  # the driver's module search path; in a worker's child processes, the worker's
    argv: tuple[str, ...]  # the driver's command line, which is also ``sys.argv`` in a trial
    store: str  # URL of the directory that holds the checkpoints
    logs: str  # directory for the trials' log files, a path or a URL
    # URL of the store's directory for copies by workers that do not see ``logs``; empty if it has none.
    log_copies: str = ""
    # ``process``: a fresh child per trial; ``worker``: one child for all; ``none``: in the launching process itself.
    isolation: Isolation = "process"
    interval: float = 0.1  # seconds between two batches of measurements
    grace: float = 5.0  # seconds between the request that a trial stops and its kill
    report_timeout: float | None = None  # seconds that a trial may run without a report or a checkpoint
    load_timeout: float | None = None  # seconds within which the function must be loaded
    returns_anything: bool = False  # whether the function was given to ``run``, so that it may return any value
    logging: LogSettings | None = None  # the logging settings of the caller's process
    sources: dict[str, str] = {}  # text of the files and notebook cells of the function's code, by file name
    silence: float = 60.0  # seconds without a message of the driver after which the worker gives up
    driver: DriverProcess | None = None  # the driver's process; None if it started the workers itself
    # Whether the driver listens at an IPv6 address, to which a name in ``address`` is resolved if possible.
    ipv6: bool = False
    files: str = ""  # URL of the directory for the files of trials
    max_files: int = 1_000_000_000  # bytes of files that are kept of each trial
    files_at_checkpoints: bool = False  # whether files are also kept when a trial has saved a state
    # ``trial``: each trial has a working directory of its own; ``shared``: all have that of their worker.
    working_directory: WorkingDirectory = "trial"
    rank_ports: tuple[int, int] | None = None  # lowest and highest port for rank 0 of several; any if None
    name: str = ""  # the run's name
    about: str = ""  # a short description of the run for a cluster's list of jobs
    workers: int = 1  # number of the run's workers; on an engine that grows, the maximum
    # The caller's variables that choose what libraries do, for Spark's workers, which have an older environment.
    environment: dict[str, str] = {}
    threads: str = ""  # the number of OpenMP threads that the user has set for Spark's executors
    share: dict[str, str] = {}  # in a worker's child processes, the worker's (see :class:`WorkerContext`)

    @property
    def copies_logs(self) -> bool:
        return bool(self.log_copies) or "://" in self.logs

    def __repr__(self) -> str:
        """Without the function's bytes."""
        return f"WorkerTask(address={self.address!r}, run_id={self.run_id!r})"


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's slot. The agent has it, not the processes that run trials."""

    index: int  # number of the slot, from 0
    incarnation: int  # how often this slot has been launched
    host: str  # name of the machine
    keys: KeyPair = field(repr=False)  # its CURVE key pair, public and secret; not in ``repr``, so that no log shows it
    accelerators: tuple[str, ...] = ()  # addresses of the worker's GPUs
    cores: int = 0  # number of the worker's CPU cores; 0 if it has no share of its own
    share: dict[str, str] = field(default_factory=dict)  # variables by which a trial's libraries see that number
