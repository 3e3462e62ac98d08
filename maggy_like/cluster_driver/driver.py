"""A driver in a task of the cluster, with the server that a driver in a client's process has, and its client."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from dataclasses import dataclass, replace

import msgspec

from maggy_like.cluster_driver.follow import POLL, LogLineWriter, RunFiles
from maggy_like.cluster_driver.tasks import (
    DriverHost,
    Keys,
    SiblingEngine,
    WorkerSlots,
    directory_not_seen,
    from_record,
    to_record,
)
from maggy_like.driver.followers import Followers
from maggy_like.driver.loop import Driver
from maggy_like.driver.recovery import open_journal
from maggy_like.driver.run_spec import RunSpec, count_workers, size_hints
from maggy_like.driver.runner import Outcome, Site, check_reach, execute, first_snapshot, new_machine, worker_task
from maggy_like.driver.settings import Settings
from maggy_like.driver.state_machine.interface import StopRequested
from maggy_like.driver.supervisor import JOIN_PATIENCE, interrupts_to
from maggy_like.engines.base import Engine, EngineRun
from maggy_like.errors import ConfigError, EngineError, JournalError, MaggyError, StoreError
from maggy_like.processes.pickles import dumps
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.task import KeyPair, WorkerId, WorkerTask
from maggy_like.rpc.endpoint import PortRange
from maggy_like.rpc.server import Server
from maggy_like.rpc.sockets import new_key_pair
from maggy_like.storage.control_files import ControlFiles, DriverRecord, StopRequestRecord
from maggy_like.storage.journal import Journal, RunStatus, backend_of

LOCK_PATIENCE = 60.0
"""Seconds that the process of a lost attempt gets to release its lock on a shared directory."""

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

    ``attempt`` is Spark's attempt number of this task. A later attempt continues from the end of the journal. Raise
    StoreError if the journal cannot be read or written now, since a retry may succeed, and EngineError if the journal's
    directory is not visible here, or another attempt has taken over.
    """
    files = ControlFiles(plan.settings.paths.journal)
    before = files.driver()
    if before is not None and before.run == task.run_id and (before.is_over or before.attempt > attempt):
        return
    if not files.has_directory():
        raise EngineError(directory_not_seen("the driver", plan.settings.paths.journal))
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


END_PATIENCE = 30.0
"""Seconds that a job gets to end after its run."""

CANCEL_PATIENCE = 15.0
"""Seconds that a job gets to end after it was cancelled."""


def require_driver_host(engine: Engine) -> DriverHost:
    """Return the engine if it can run the driver in a task."""
    if not isinstance(engine, DriverHost):
        raise ConfigError(
            f"driver='cluster' needs a Spark session, and engine={engine.name!r} has none; "
            "use engine='spark', or leave driver out"
        )
    return engine


def execute_in_cluster(spec: RunSpec) -> Outcome:
    """Execute a run with its driver in a task of the application, and follow it until its end."""
    settings, host = spec.settings, require_driver_host(spec.engine)
    check_reach(settings, spec.engine)
    capacity = WorkerSlots(host)
    size = count_workers(settings, capacity)
    started = time.monotonic()
    run_id = secrets.token_hex(8)
    # The journal begins here, so that its errors are raised before anything starts. The driver resumes it.
    journal, warnings = open_journal(settings, new_machine(settings, size, grows=True), run_id)
    try:
        ControlFiles(settings.paths.journal).clear(run_id)
        source = RunFiles(settings.paths.journal, first_snapshot(spec, 0))
    finally:
        journal.close()
    server = new_key_pair()
    keys = [Keys.make(host.max_task_failures()) for _ in range(size)]
    plan = _pickled(Plan(settings, size, server, tuple(pairs.public for pairs in keys), host.name, host.driver_ports()))
    task = worker_task(spec, size, run_id, "", server[0])
    client = _Client(spec, run_id, source, started)
    for hint in (*settings.hints, *size_hints(settings, capacity, size), *warnings):
        source.say(hint)
    for warning in settings.warnings:
        source.say(warning, is_warning=True)
    with interrupts_to(client.interrupted):
        spec.stop.attach(lambda: client.want(Ending.STOPPED))
        client.run = host.launch_with_driver(plan, task, keys, settings.paths.journal)
        return client.until_done()


def _pickled(plan: Plan) -> bytes:
    """Pickle the plan."""
    try:
        return dumps(plan)
    except Exception as error:
        raise ConfigError(
            f"the search cannot be sent to a task of the application ({type(error).__name__}: {error}); use plain "
            "values and functions in the optimizer, the search space and failures, or driver='client'"
        ) from error


class _Client:
    """Follows one run, whose job is launched before :meth:`until_done`."""

    run: EngineRun
    _followers: Followers

    def __init__(self, spec: RunSpec, run_id: str, source: RunFiles, started: float) -> None:
        self._spec = spec
        self._run_id = run_id
        self._source = source
        self._started = started
        self._wanted: Ending | None = None  # the ending that this process requested
        self._asked = self._hurried = self._gave_up = False

    def want(self, ending: Ending) -> None:
        """Stop the search. For any thread."""
        self._wanted = self._wanted or ending

    def interrupted(self, count: int) -> None:
        """Stop the search after the first Ctrl-C or SIGTERM, and cancel the job after the second."""
        self.want(Ending.INTERRUPTED)
        self._hurried |= count > 1

    def until_done(self) -> Outcome:
        """Follow the run until its end."""
        settings, stop = self._spec.settings, lambda error: self.want(Ending.INTERRUPTED)
        optimizer = settings.search.optimizer.describe()
        self._followers = Followers(
            self._source, self._spec.callbacks, stop, settings.files, optimizer, in_threads=True
        )
        self._followers.show_on(self._spec.displays)
        try:
            reason = self._await_end()
        finally:
            ended = self._source.ended
            ending = ended.status if ended is not None else self._wanted or Ending.ERROR
            self._followers.finish(ending, lambda: self._hurried)
        return self._outcome(reason)

    def _await_end(self) -> str:
        """Show the run until its job has ended. Return why the job ended, if it ended without the run."""
        waiting = f"still waiting for engine={self._spec.engine.name!r} to start the driver"
        while (reason := self.run.poll()) is None and not (self._source.ended or self._gave_up):
            self._look()
            if waiting and time.monotonic() - self._started > JOIN_PATIENCE and self._driver() is None:
                self._source.say(waiting)
                waiting = ""
            self._pass_on_stop()
            time.sleep(POLL)
        if reason is None and not self._gave_up:
            self._await_job()
        reason = self.run.poll() or ""
        if self.run.stopped_by and not self._wanted:
            self._source.say(f"stopped from outside: {self.run.stopped_by}")
        self._look(now=not self._gave_up)  # a job that does not end may write for ever
        return reason

    def _look(self, *, now: bool = False) -> None:
        self._source.look(now=now)
        self._followers.look()

    def _await_job(self) -> None:
        """Wait for the end of the job after that of the run."""
        deadline = time.monotonic() + END_PATIENCE
        while not self.run.wait(POLL) and time.monotonic() < deadline and not self._hurried:
            self._look()
        if not self.run.wait(0.0):
            self.run.cancel()

    def _pass_on_stop(self) -> None:
        """Pass a stop request on to the driver, or cancel a job whose driver has not started."""
        if self._wanted and not self._asked:
            self._asked = True
            try:
                self._source.files.ask_to_stop(StopRequestRecord(self._run_id, self._wanted))
            except Exception as error:  # of any file system
                self._source.say(f"the driver cannot be asked to stop: {error!r}")
                self._hurried = True
        if self._hurried or (self._asked and not self._may_have_begun()):
            self.run.cancel()
            if not self.run.wait(CANCEL_PATIENCE) and self._hurried:
                self._gave_up = True
                warning = f"its job has not ended within {CANCEL_PATIENCE:g} s after it was cancelled, and may continue"
                self._source.say(warning)

    def _driver(self) -> DriverRecord | None:
        """Return the driver's record, once it is written."""
        record = self._source.driver()
        return record if record is not None and record.run == self._run_id else None

    def _may_have_begun(self) -> bool:
        """Return whether the driver may have started. Without an answer of the file system it may have."""
        with contextlib.suppress(Exception):
            record = self._source.files.driver()
            return record is not None and record.run == self._run_id
        return True

    def _outcome(self, reason: str) -> Outcome:
        seconds = time.monotonic() - self._started
        machine, ended = self._source.reader.machine, self._source.ended
        created = self._source.reader.contents.header.created
        record = self._driver()
        error: Exception | None = from_record(record.error) if record is not None and record.error is not None else None
        if ended is not None:
            return Outcome(machine, ended.status, seconds, error, created)
        ending = self._wanted or (Ending.CANCELLED if self.run.stopped_by else Ending.ERROR)
        if ending is Ending.ERROR and error is None:
            error = EngineError(reason or "the Spark job ended before the search did")
            error.add_note(f"the run's files are in {self._spec.settings.paths.directory}; use resume=True to continue")
        if not self._hurried:
            self._record(ending, seconds)
        return Outcome(machine, ending, seconds, error, created)

    def _record(self, ending: Ending, seconds: float) -> None:
        """Record in the journal how the run ended, if its driver could not."""
        backend = backend_of(self._spec.settings.paths.journal)
        with contextlib.suppress(JournalError, OSError):  # another driver has resumed it, or the store fails
            if ending is Ending.ERROR and backend.is_held():
                return  # perhaps only this client was cut off
            journal = Journal(backend, self._run_id)
            try:
                journal.read()
                journal.note(RunStatus(ending, time.time(), seconds))
            finally:
                journal.close()
