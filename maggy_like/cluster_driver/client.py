"""The client of a run whose driver is a task of the application: it launches, follows and stops the run."""

from __future__ import annotations

import contextlib
import secrets
import time

from maggy_like.cluster_driver.driver import Plan
from maggy_like.cluster_driver.follow import POLL, RunFiles
from maggy_like.cluster_driver.tasks import DriverHost, Keys, WorkerSlots, from_record
from maggy_like.driver.followers import Followers
from maggy_like.driver.recovery import open_journal
from maggy_like.driver.runner import check_reach, first_snapshot, new_machine, worker_task
from maggy_like.driver.settings import Outcome, RunSpec, count_workers, size_hints
from maggy_like.driver.supervisor import JOIN_PATIENCE, interrupts_to
from maggy_like.engines.base import Engine, EngineRun
from maggy_like.errors import ConfigError, EngineError, JournalError
from maggy_like.processes.pickles import dumps
from maggy_like.protocol.endings import Ending
from maggy_like.rpc.sockets import new_key_pair
from maggy_like.storage.control_files import ControlFiles, DriverRecord, StopRequestRecord
from maggy_like.storage.journal import Journal, RunStatus, backend_of

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
    task = worker_task(spec, run_id, "", server[0])
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
        record = self._driver()
        error: Exception | None = from_record(record.error) if record is not None and record.error is not None else None
        if ended is not None:
            return Outcome(machine, ended.status, seconds, error)
        ending = self._wanted or (Ending.CANCELLED if self.run.stopped_by else Ending.ERROR)
        if ending is Ending.ERROR and error is None:
            error = EngineError(reason or "the Spark job ended before the search did")
            error.add_note(f"the run's files are in {self._spec.settings.paths.directory}; use resume=True to continue")
        if not self._hurried:
            self._record(ending, seconds)
        return Outcome(machine, ending, seconds, error)

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
