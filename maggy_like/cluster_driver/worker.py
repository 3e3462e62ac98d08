"""The task of a worker: an agent, and another one if the driver was lost and restarted elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from maggy_like.cluster_driver.tasks import Keys, directory_not_seen
from maggy_like.errors import EngineError, WorkerError
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.storage.control_files import ControlFiles, DriverRecord
from maggy_like.worker.agent.agent import Agent

FIRST_PATIENCE = 600.0
"""Seconds that the driver's task gets to start."""

NEXT_PATIENCE = 60.0
"""Seconds that a lost driver gets to restart elsewhere. Then the last worker leaves its slot to the driver."""

STAGGER = 15.0
"""Additional seconds for each worker before the last one, since one slot is enough."""

LOOK = 1.0
"""Seconds between two reads of the driver's address."""

SILENCE = 5.0
"""Seconds without a message from the driver after which its address is read again."""


def serve(task: WorkerTask, index: int, size: int, attempt: int, keys: Keys, journal: str, site: WorkerContext) -> None:
    """Serve the run until its end. The driver records its address in the directory ``journal``.

    Raise EngineError if there is no driver, or it was lost too often.
    """
    files, address = ControlFiles(journal), ""
    if not files.has_directory():
        raise EngineError(directory_not_seen(f"worker {index}", journal))
    for incarnation, pair in keys.of_attempt(attempt):
        patience = NEXT_PATIENCE + STAGGER * (size - 1 - index) if address else FIRST_PATIENCE
        record = find_driver(files, task.run_id, address, patience)
        if record is None and address:
            return  # the driver's task may be waiting for a slot
        if record is None:
            raise EngineError(f"the driver's task has not recorded its address within {FIRST_PATIENCE:g} s")
        if record.is_over:
            return
        address = record.address
        context = replace(site, index=index, incarnation=incarnation, keys=pair)
        if serve_once(msgspec.structs.replace(task, address=address, ipv6="[" in address), context, files):
            return
    raise EngineError(f"worker {index} has lost its driver too often; use resume=True to continue")


def serve_once(task: WorkerTask, context: WorkerContext, files: ControlFiles) -> bool:
    """Serve the driver at ``task.address``, and return whether the driver dismissed the worker."""
    lifeline, launcher = os.pipe()
    try:
        try:
            agent = Agent(task, context, lifeline=lifeline)
        except BaseException:
            os.close(launcher)  # else the watch closes it
            raise
        # A driver that cannot be reached may have been restarted elsewhere.
        with _ended_with_driver(agent, task, files, launcher), contextlib.suppress(WorkerError):
            agent.run()
        return agent.was_dismissed
    finally:
        os.close(lifeline)


def find_driver(files: ControlFiles, run: str, lost: str, patience: float) -> DriverRecord | None:
    """Return the driver's record. None if there is none within ``patience`` seconds.

    ``lost`` is an address that did not answer. It counts again once it answers, since the network may have failed.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < patience:
        record = _look(files, run)
        if record is not None and (record.is_over or record.address != lost or _answers(record.address)):
            return record
        time.sleep(LOOK if waited < 30 else 5 * LOOK)
    return None


def _answers(address: str) -> bool:
    """Return whether a process listens at a ZeroMQ address."""
    where = urlsplit(address)
    with contextlib.suppress(OSError), socket.create_connection((where.hostname or "", where.port or 0), timeout=2.0):
        return True
    return False


@contextlib.contextmanager
def _ended_with_driver(agent: Agent, task: WorkerTask, files: ControlFiles, launcher: int) -> Iterator[None]:
    """End the agent as soon as the record has another driver, or the end of the run."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            record = _look(files, task.run_id) if agent.silence > SILENCE else None
            if record is not None and (record.is_over or record.address != task.address):
                break
        os.close(launcher)

    thread = threading.Thread(target=watch, name="maggy-driver-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look(files: ControlFiles, run: str) -> DriverRecord | None:
    """Return the driver's record if it is that of this call of ``lagom`` and can be read now."""
    with contextlib.suppress(Exception):
        record = files.driver()
        if record is not None and record.run == run:
            return record
    return None
