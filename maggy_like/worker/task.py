"""What a worker is told when it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Isolation = Literal["process", "worker", "none"]


class WorkerTask(msgspec.Struct, frozen=True):
    """All that the workers of one run have in common; it travels inside the engine's own closure.

    Attributes:
        address: ZeroMQ address of the driver.
        server_key: The driver's public CURVE key.
        token: The run's secret.
        train_fn: The training function, pickled by cloudpickle.
        preload: Modules that the fork server imports once, before any trial.
        sys_path: The driver's module search path.
        argv: The driver's command line, which a trial sees as its own.
        store: URL of the folder that holds the checkpoints.
        logs: Folder for the trials' log files.
        isolation: ``process`` (a fresh child per trial), ``worker`` (one child for all), ``none``
            (the trial runs in the launching process itself).
        interval: Seconds between two batches of measurements.
        grace: Seconds between telling a trial to stop and killing it.
        silence: Seconds without a word of the driver after which the worker gives up.
    """

    address: str
    server_key: bytes
    token: str
    train_fn: bytes
    preload: tuple[str, ...]
    sys_path: tuple[str, ...]
    argv: tuple[str, ...]
    store: str
    logs: str
    isolation: Isolation = "process"
    interval: float = 0.1
    grace: float = 5.0
    silence: float = 60.0


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's place.

    Attributes:
        index: Its number in the gang, from 0.
        epoch: Its incarnation: how often this place was refilled.
        host: Name of the machine.
        accelerators: Addresses of the GPUs that are its own.
    """

    index: int
    epoch: int
    host: str
    accelerators: tuple[str, ...] = ()
