"""The task of the driver. It runs the same driver and server as a client's process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, replace

import msgspec

from maggy_like.cluster_driver.follow import LogLineWriter
from maggy_like.cluster_driver.tasks import SiblingEngine, folder_not_seen, to_record
from maggy_like.driver.loop import Driver
from maggy_like.driver.runner import Site, execute
from maggy_like.driver.settings import Outcome, RunSpec, Settings
from maggy_like.driver.state_machine.interface import StopRequested
from maggy_like.errors import EngineError, JournalError, MaggyError, StoreError
from maggy_like.protocol.task import KeyPair, WorkerId, WorkerTask
from maggy_like.rpc.endpoint import PortRange
from maggy_like.rpc.server import Server
from maggy_like.storage.control_files import ControlFiles, DriverRecord

LOCK_PATIENCE = 60.0
"""Seconds that the process of a lost attempt gets to release its lock on a shared folder."""

STOP_LOOK = 1.0
"""Seconds between two checks for a stop request of a client."""


@dataclass(frozen=True)
class Plan:
    """The data of the driver's task."""

    settings: Settings  # settings of the run. The client has begun its journal, which the driver resumes
    size: int  # number of workers
    server: KeyPair  # key pair of the server
    public: tuple[tuple[bytes, ...], ...]  # public keys of each worker's incarnations, by worker index
    engine: str  # name of the engine
    ports: PortRange  # ports of which the server takes one


def drive(plan: Plan, task: WorkerTask, attempt: int, host: str) -> None:
    """Drive the run until its end, and record the end for the clients.

    Args:
        attempt: Spark's attempt number of this task. A later attempt continues from the end of the journal.

    Raises:
        StoreError: The journal cannot be read or written now; a retry may succeed.
        EngineError: Another attempt has taken over.
    """
    files = ControlFiles(plan.settings.paths.journal)
    before = files.driver()
    if before is not None and before.run == task.run_id and (before.is_over or before.attempt > attempt):
        return
    if not files.has_folder():
        raise EngineError(folder_not_seen("the driver", plan.settings.paths.journal))
    began = before.began if before is not None and before.run == task.run_id else time.time()
    timeout, n_trials = plan.settings.limits.timeout, plan.settings.search.n_trials
    record = DriverRecord(task.run_id, attempt, "", socket.gethostname(), began, n_trials=n_trials, timeout=timeout)
    left = None if timeout is None else max(1.0, timeout - (time.time() - began))  # counted from the first attempt
    settings = replace(
        plan.settings,
        files=replace(plan.settings.files, resume=True),
        size=replace(plan.settings.size, workers=plan.size),
        limits=replace(plan.settings.limits, timeout=left),
        hints=(),
        warnings=(),
    )
    with _DriverTask(plan, task, files, record, host) as driver_task:
        try:
            error = driver_task.execute(settings).error
        except StoreError:
            raise
        except MaggyError as caught:
            error = caught
    if isinstance(error, StoreError):
        raise error
    newest = files.driver()
    if newest is not None and newest.run == record.run and newest.attempt > attempt:
        raise EngineError(f"attempt {newest.attempt} of the driver's task has taken over from attempt {attempt}")
    files.publish(msgspec.structs.replace(record, is_over=True, error=None if error is None else to_record(error)))


class _DriverTask:
    """Runs the driver in this task, and a thread that checks for stop requests."""

    def __init__(self, plan: Plan, task: WorkerTask, files: ControlFiles, record: DriverRecord, host: str) -> None:
        self._plan = plan
        self._task = task
        self._files = files
        self._record = record
        self._host = host
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _DriverTask:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def execute(self, settings: Settings) -> Outcome:
        """Run the driver here."""
        engine = SiblingEngine(self._plan.engine, self._plan.size, self._host)
        lines = self._files.lines()
        first = lines.first + len(lines.lines) if lines is not None and lines.run == self._task.run_id else 0
        display = LogLineWriter(self._files, self._task.run_id, first)
        spec = RunSpec(settings, engine, self._task.train_fn, self._task.preload, [display])
        site = Site(
            self._task.run_id,
            server=self._open_server,
            task=lambda server: msgspec.structs.replace(self._task, address=server.address, ipv6=server.is_ipv6),
            admit=lambda server, worker: (b"", b""),  # the workers have their keys
            begun=self._begun,
        )
        deadline = time.monotonic() + LOCK_PATIENCE * (self._record.attempt > 0)
        while True:
            try:
                return execute(spec, site)
            except JournalError:  # the lock of the previous attempt, whose process is ending
                if self._thread is not None or time.monotonic() > deadline:
                    raise
                time.sleep(STOP_LOOK)

    def _open_server(self) -> Server:
        server = Server(self._host, keys=self._plan.server, ports=self._plan.ports)
        for index, keys in enumerate(self._plan.public):
            for incarnation, public in enumerate(keys):
                server.expect(WorkerId(index, incarnation), public)
        self._files.publish(msgspec.structs.replace(self._record, address=server.address))
        return server

    def _begun(self, driver: Driver) -> None:
        self._thread = threading.Thread(target=self._look_for_stop, args=(driver,), name="maggy-stop", daemon=True)
        self._thread.start()

    def _look_for_stop(self, driver: Driver) -> None:
        while not self._over.wait(STOP_LOOK):
            with contextlib.suppress(Exception):  # of any file system: the next check may succeed
                if (reason := self._files.stop_wanted(self._task.run_id)) is not None:
                    driver.post(StopRequested(reason))
                    return
