"""One Spark job whose tasks are workers: its start, its appearance in Spark, its end, and the reason of the end."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError

from maggy_like.cluster_driver.tasks import Keys
from maggy_like.engines.base import EngineRun
from maggy_like.errors import EngineError
from maggy_like.processes.system import TOO_LITTLE_MEMORY, too_small
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.endpoint import CANNOT_REACH
from maggy_like.spark.connection import (
    SESSION_STOPPED,
    ServerWatch,
    Watch,
    address_towards,
    is_classic,
    is_local_master,
    is_released,
    is_stopped,
    is_unknown,
    setting,
    unknown_session,
)
from maggy_like.spark.engine.task import (
    STARTED_AGAIN,
    TOO_FEW_PARTITIONS,
    UNFIT,
    Row,
    agent_task,
    context_of,
    entry,
    in_arrow,
)
from maggy_like.spark.executors import first_failure, in_words, is_cluster_s

if TYPE_CHECKING:
    import pyarrow
    from pyspark import TaskContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession


NAME = "spark.log"


def write_details(directory: str, run: str, indexes: Sequence[int], incarnation: int, text: str) -> str:
    """Append an error to the file in ``directory``, the run's directory for the output of its workers.

    Return the file's path; empty if it cannot be written.
    """
    path = Path(directory, NAME)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    workers = ", ".join(map(str, indexes))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as log:
            log.write(
                f"--- {when} {run}: the job of workers {workers}, incarnation {incarnation}, ended\n{text.rstrip()}\n"
            )
        return str(path)
    return ""


# Spark 4: "[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group x SQLSTATE: XXKDA"; before, and where the
# session is stopped, without the condition. A failure reads "Job aborted due to stage failure: ...".
_CANCELLED = re.compile(
    r"(?:^|: |\) |\] )(?:\[SPARK_JOB_CANCELLED\] )?Job (\d+) cancell?ed\b[ :]*(.*?)\s*(?:SQLSTATE: \w+)?\s*$"
)
_INTERRUPTED = re.compile(r"\[OPERATION_CANCELL?ED\]")
# Connect's server lets go of a session that its client has stopped; the client may have closed its channel before, also
# while the job's answer was on its way: gRPC then says "Channel closed!" or "Stream removed (Channel closed!)".
_CLOSED = re.compile(r"\[INVALID_HANDLE\.SESSION_CLOSED\]|^Cannot invoke RPC|^details = \"[^\"]*Channel closed!")
# A standalone Master whose user killed the application. "FAILED" instead: its executors failed too often.
_KILLED = re.compile(r"Master removed our application: KILLED")

INTERRUPTED = "its Spark Connect operation was interrupted"

_REASONS = (
    (re.compile(r"^(?:as )?part of cancelled job group (.+)$"), "job {job} was cancelled with its job group {what!r}"),
    (re.compile(r"^(?:as )?part of cancelled job tags? (.+)$"), "job {job} was cancelled with its job tag {what!r}"),
    (re.compile(r"^as part of cancellation of all jobs()$"), "all jobs of the Spark application were cancelled"),
    (re.compile(r"^because SparkContext was shut down()$"), SESSION_STOPPED),
    (re.compile(r"^()$"), "job {job} was cancelled"),
    (re.compile(r"^(?:because )?(.+)$"), "job {job} was cancelled: {what}"),
)


def cancelled_by(text: str) -> str:
    """Return who cancelled a job, from its error as pyspark reports it; empty if it was not cancelled."""
    for line in _messages(text):
        if (match := _CANCELLED.search(line)) is not None:
            return _in_words(match[1], match[2])
        if _INTERRUPTED.search(line):
            return INTERRUPTED
        if _CLOSED.search(line):
            return SESSION_STOPPED
        if _KILLED.search(line):
            return "the Spark application was killed"
    return ""


def _messages(text: str) -> list[str]:
    """Return the first lines of an error, which are Spark's own. Later lines may come from a function."""
    head = re.split(r"\n\s*at |\n\s*\n|Traceback \(most recent call last\)", text, maxsplit=1)[0]
    return [line.strip() for line in head.splitlines()[:3]]


def _in_words(job: str, reason: str) -> str:
    for pattern, words in _REASONS:
        if (match := pattern.search(reason)) is not None:
            return words.format(job=job, what=match[1])
    raise AssertionError(reason)


ANOTHER_PYTHON = (
    "use maggy_like.spark_session(), or set PYSPARK_PYTHON={} before the session starts (on a cluster, the path of the "
    "same Python there)"
)

# Java exits so after SIGHUP, SIGINT and SIGTERM, having stopped its SparkContext before.
_SHUT_DOWN = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))

_WORDS = (
    (re.compile(r"ExecutorLostFailure \(executor (\S+) exited [^)]*\) Reason: (.*\S)"), "Spark lost executor {}: {}"),
    (re.compile(r"Python worker exited unexpectedly"), "the Python process of a Spark task died, or was killed"),
)
"""Messages of Spark for the usual ends of a task, and ours."""

_NOISE = re.compile(
    r"^(An error occurred while calling \S+ ?:? ?|: |org\.apache\.spark\.\w+: |Job aborted due to stage failure: )+"
)

EXIT_PATIENCE = 5.0
"""Seconds within which a Java process that no longer answers must be gone."""


def cause_of(text: str) -> str:
    """Return the line of a long Spark error that has the cause.

    That is a Python traceback's last line; else our message for a usual end; else the innermost ``Caused by``; else
    the first meaningful line.
    """
    traceback = re.search(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", text)
    if traceback is not None:
        return traceback[1]
    for pattern, words in _WORDS:
        if (match := pattern.search(text)) is not None:
            return words.format(*match.groups())
    if causes := re.findall(r"^\s*Caused by: (.*\S)", text, re.MULTILINE):
        return str(causes[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. ", line)]
    return _NOISE.sub("", " ".join(lines[:3]))


def unfit_worker(cause: str) -> str | None:
    """Return what to append to the cause if a worker's Python lacks something; None for another cause.

    Another launch would end in the same way. The messages of our own function are complete; those of PySpark, which
    fails before ours can run, are not.
    """
    is_import = UNFIT in cause or cause.startswith(("ModuleNotFoundError", "ImportError"))
    if is_import and any(sign in cause.lower() for sign in TOO_LITTLE_MEMORY):
        return f"; the Spark workers have too little address space, {too_small()}"
    if UNFIT in cause:
        return ""
    another = ANOTHER_PYTHON.format(sys.executable)
    if "PYTHON_VERSION_MISMATCH" in cause:
        return f"; the Spark workers run another Python: {another}"
    if is_import:
        return (
            "; the Spark workers' Python lacks it; install it on every node, send an environment with spark.archives "
            f"(docs/shipping.md), or, if the nodes have this Python too, {another}"
        )
    return None


class JavaEnd(NamedTuple):
    """The end of a session's Java process."""

    text: str
    was_shut_down: bool = False  # asked to end, and did so in order


def java_end(session: SparkSession) -> JavaEnd | None:
    """Return how the Java process of a classic session ended; None while it answers, and for a stopped session."""
    context = session.sparkContext
    try:
        context._jsc.sc().isStopped()
    except (Py4JJavaError, AttributeError):  # AttributeError: stopped here; the engine says so when it launches again
        return None
    except (Py4JError, OSError):
        pass
    else:
        return None
    process = getattr(context._gateway, "proc", None)
    if process is None:  # spark-submit started it, and this process from it
        return JavaEnd("the Spark application's Java process no longer answers")
    try:
        status = process.wait(EXIT_PATIENCE)
    except subprocess.TimeoutExpired:
        return JavaEnd(f"the Spark application's Java process (pid {process.pid}) no longer answers")
    if status < 0:
        name = signal.Signals(-status).name
        how = f"killed by {name}" + (", as the kernel does when memory is short" if name == "SIGKILL" else "")
    else:
        how = f"exit status {status}"
    message = f"the Spark application's Java process (pid {process.pid}) is gone: {how}"
    return JavaEnd(message, status in _SHUT_DOWN)


def check_local_workers(session: SparkSession) -> None:
    """Check that the workers of a local master, which run here, run a compatible Python."""
    if is_classic(session) and is_local_master(setting(session, "spark.master", "")):
        check_python(session.sparkContext)


def check_python(context: Any) -> None:
    """Check that the workers of a local master run a compatible Python, of the same minor version.

    If the user chose none, they run this interpreter from now on, and not the first ``python3`` on the path, so that
    they can import what the driver imports. ``context`` is the ``SparkContext``. The version of its workers' Python is
    checked unless it is this interpreter.
    """
    if context.pythonExec == "python3" and "PYSPARK_PYTHON" not in os.environ and sys.executable:
        context.pythonExec = sys.executable
    program = context.pythonExec
    if program == sys.executable:
        return
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", ask], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return  # Spark's own error says what is wrong with it
    version, own = done.stdout.strip(), f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != own:
        raise EngineError(
            f"the Spark workers must run Python {own} as this process does, got {version} ({program}); "
            f"{ANOTHER_PYTHON.format(sys.executable)}"
        )


TOO_FEW_SLOTS = "SPARK-24819"
"""Spark's message if a barrier stage has more tasks than slots, after it has waited for them."""


class SparkRun(EngineRun):
    """Workers in one barrier stage, or one worker without a barrier."""

    _watch: Watch | None = None  # of a session whose JVM is here

    def __init__(
        self,
        session: SparkSession,
        task: WorkerTask,
        indexes: Sequence[int],
        incarnation: int,
        keys: Sequence[KeyPair],  # of each worker
        profile: ResourceProfile | None,  # of each task; None if the session's settings define it
        logs: str = "",  # directory for Spark's messages on failures; none if empty
        *,
        count: Callable[[], int | None],  # returns the present number of slots with these resources
        barrier: bool = True,  # whether the workers start and end together
        server: ServerWatch | None = None,  # of a Spark Connect session
    ) -> None:
        from pyspark import InheritableThread

        super().__init__(indexes, incarnation)
        self._session = session
        self.tag = f"maggy-{uuid.uuid4().hex[:8]}"
        self._task = task
        self._keys = tuple(keys)
        self._profile = profile
        self._count = count
        self._barrier = barrier
        self._watch = None if server is None else server.begin()
        self._logs = logs
        self.executor: str | None = None  # of the only task of a job without a barrier; None before it is known
        self._ended: str | None = None
        self._is_cancelled = self._is_lost = False
        self._canceller: threading.Thread | None = None
        self._thread = InheritableThread(self._collect, session=session)
        self._thread.daemon = True
        self._thread.start()

    def poll(self) -> str | None:
        if gone := self._server_gone:  # its thread may wait on
            self.is_hopeless = True
            return gone
        return None if self._thread.is_alive() and not self._is_lost else self._ended or ""

    def lost(self, error: str) -> None:
        """Record that the executor of the only task is lost, and cancel the job, which would wait for another."""
        self._ended = self._of_task(error)
        self._is_lost = True
        self.cancel()

    def cancel(self) -> None:
        if not self._thread.is_alive() or self._server_gone:
            return
        self._is_cancelled = True
        if is_classic(self._session):
            with contextlib.suppress(Exception):  # of a session whose JVM is gone, and the workers with it
                cancel_jobs(self._session, self.tag)
        elif self._canceller is None or not self._canceller.is_alive():
            # Where Spark Connect's server is gone, pyspark tries again for ten minutes.
            self._canceller = threading.Thread(target=self._interrupt, daemon=True)
            self._canceller.start()

    def wait(self, timeout: float) -> bool:
        if not self._server_gone:
            self._thread.join(timeout)
        return bool(self._server_gone) or not self._thread.is_alive()

    @property
    def _server_gone(self) -> str:
        """Return why a Connect server counts as gone; empty while it does not."""
        return "" if self._watch is None else self._watch.gone

    def _interrupt(self) -> None:
        with contextlib.suppress(Exception):
            self._session.interruptTag(self.tag)

    def _run_tasks(self) -> list[int]:
        """Run the job, and return the results of its tasks."""
        return self._in_tasks(agent_task(self._task, self.incarnation))

    def _in_tasks(self, function: Callable[[Iterator[Row]], Iterator[int]]) -> list[int]:
        """Run the function in a task for each worker, and return all results.

        Each task gets its own row, so that no task sees the keys of the others, which a closure would show. A classic
        session runs an RDD job, because the first SQL query would cost the JVMs as much time as the whole job.
        """
        public, secret = zip(*self._keys, strict=True)
        if is_classic(self._session):
            rows = list(zip(self.indexes, public, secret, strict=True))
            context = self._session.sparkContext
            tasks: Any = context.parallelize(rows, len(rows))
            if self._profile is not None:
                tasks = tasks.withResources(self._profile)
            if self._barrier:
                tasks = tasks.barrier()
            # collect() would name the job by this thread's code, and take their names from the caller's jobs meanwhile.
            return list(context.runJob(tasks.mapPartitions(entry(function)), iter))
        import pyarrow

        table = pyarrow.table({"worker": list(self.indexes), "public": list(public), "secret": list(secret)})
        found = self._session.createDataFrame(table).mapInArrow(
            entry(in_arrow(function)), "worker bigint", barrier=self._barrier, profile=self._profile
        )
        return [row["worker"] for row in found.collect()]

    def _collect(self) -> None:
        try:
            with hidden_progress_bar(self._session):
                label_jobs(self._session, self._task, len(self.indexes), self.incarnation, self.tag)
                if STARTED_AGAIN in self._run_tasks():
                    self._ended = self._of_task(first_failure(self._session, self.tag))
        except Exception as error:  # the job failed or was cancelled; the driver decides what follows
            if self._is_lost or self._server_gone:
                return
            text = str(error)
            gone = java_end(self._session) if is_classic(self._session) else None
            self.stopped_by = self._stopped_by(text, gone)
            self._ended = self.stopped_by or self._explain(text, gone)
            if self._logs and not self._is_cancelled:
                self.details = write_details(self._logs, self._task.name, self.indexes, self.incarnation, text)
        finally:
            if self._watch is not None:
                self._watch.end()

    def _of_task(self, error: str) -> str:
        """Return why the only task ended; without a message of Spark, the trial is not blamed."""
        if not error:
            self.with_node = True
            return "its Spark task failed, or its executor was lost"
        return self._explain(error, None)

    def _stopped_by(self, text: str, gone: JavaEnd | None) -> str:
        """Return who ended the job, if it was not :meth:`cancel`.

        A classic session reports the tag by which a job was cancelled; Connect's error is the same for every
        cancellation.
        """
        if gone is not None:
            return gone.text if gone.was_shut_down else ""
        by = SESSION_STOPPED if is_stopped(self._session) else cancelled_by(text)
        if self._is_cancelled and (self.tag in by or not is_classic(self._session)):
            return ""
        if by == INTERRUPTED and is_released(self._session):  # stop() interrupts first, and is not over yet
            return SESSION_STOPPED
        return by

    def _explain(self, text: str, gone: JavaEnd | None) -> str:
        """Return why the job ended, and record whether another would end in the same way."""
        if gone is not None:
            self.is_hopeless = True
            return f"{gone.text}; restart this Python process"
        self.with_node = is_cluster_s(text)
        if lost := in_words(text):
            return lost
        cause = cause_of(text)
        if (advice := unfit_worker(cause)) is not None:
            self.is_hopeless = True
            cause += advice
        if is_unknown(text):
            self.is_hopeless = True
            return unknown_session(self._session)
        if TOO_FEW_SLOTS in cause:
            return self._too_few_slots()
        self.is_hopeless = self.is_hopeless or TOO_FEW_PARTITIONS in cause
        if CANNOT_REACH in cause:
            self.is_cut_off = True
            return cause.partition(": ")[2]
        return f"the Spark job ended: {cause}"

    def _too_few_slots(self) -> str:
        slots = None
        with contextlib.suppress(Exception):  # of a session that is gone meanwhile
            slots = self._count()
        has = "fewer" if slots is None or slots >= len(self.indexes) else f"{slots}"
        return (
            f"the Spark session must have {len(self.indexes)} free slots for {len(self.indexes)} workers, got {has} "
            f"now ({TOO_FEW_SLOTS})"
        )


_GROUP = "spark.jobGroup.id"
_CALL_SITE = "callSite.short", "callSite.long"
"""Properties for the name of a job and its stages in Spark's UI, and for its "+details"."""


def job_group(name: str) -> str:
    """Return the job group and tag of a run's jobs."""
    return "maggy_like-" + re.sub(r"[^\w.-]", "_", name)  # a tag may hold no comma


def describe(task: WorkerTask, workers: int, incarnation: int) -> str:
    """Describe a job."""
    about = f"{task.about}, {workers} worker{'s' * (workers != 1)}, incarnation {incarnation}"
    return f"maggy_like {task.name}: {about}"


def label_jobs(session: SparkSession, task: WorkerTask, workers: int, incarnation: int, own: str) -> None:
    """Label the jobs that this thread is about to start; those of the caller's thread are not changed.

    If the caller has set a group, the job keeps it: whoever cancels the group, as a notebook does for its cell, also
    means the search. A classic session's own tags do not reach barrier jobs, so those of its context are used.

    ``own`` is the unique tag of the job.
    """
    group = job_group(task.name)
    if not is_classic(session):
        session.addTag(own)
        session.addTag(group)
        return
    context = session.sparkContext
    context.addJobTag(own)
    context.addJobTag(group)
    if context.getLocalProperty(_GROUP) is None:
        context.setLocalProperty(_GROUP, group)
    description = describe(task, workers, incarnation)
    context.setJobDescription(description)
    for key, value in zip(_CALL_SITE, (f"maggy_like {task.name}", description), strict=True):
        context.setLocalProperty(key, value)


def cancel_jobs(session: SparkSession, own: str) -> None:
    """Cancel the jobs of a classic session that have a tag, with a reason for Spark's UI."""
    session.sparkContext._jsc.sc().cancelJobsWithTag(own, f"by maggy_like, whose search no longer needs it ({own})")


_lock = threading.Lock()
_hidden = 0
_quiet = threading.local()


@contextlib.contextmanager
def hidden_progress_bar(session: SparkSession) -> Iterator[None]:
    """Hide the job of this thread from Spark's progress bar during the block."""
    hidden = _hidden_bar_of_jvm(session) if is_classic(session) else _hidden_handlers(session)
    with hidden:
        yield


@contextlib.contextmanager
def _hidden_handlers(session: SparkSession) -> Iterator[None]:
    """Hide the operations of this thread from a Connect client's progress bar and its progress handlers.

    Each operation reads them when it begins, from a list of its client and from a function, neither of which can be
    disabled by an argument. So they are replaced by ones that check the calling thread. If that fails, the bar is
    shown.
    """
    with contextlib.suppress(Exception):
        progress: Any = importlib.import_module("pyspark.sql.connect.shell.progress")
        with _lock:
            client: Any = session.client
            if not isinstance(client._progress_handlers, _Handlers):
                client._progress_handlers = _Handlers(client._progress_handlers)
            if not hasattr(progress.progress_bar_enabled, "before"):
                progress.progress_bar_enabled = _asked_by_others(progress.progress_bar_enabled)
    _quiet.here = True
    try:
        yield
    finally:
        _quiet.here = False


class _Handlers(list[Any]):
    """Progress handlers, hidden from a thread that hides them."""

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if getattr(_quiet, "here", False) else super().__iter__()


def _asked_by_others(before: Callable[[], bool]) -> Callable[[], bool]:
    def is_enabled() -> bool:
        return not getattr(_quiet, "here", False) and before()

    is_enabled.before = before  # type: ignore[attr-defined]
    return is_enabled


@contextlib.contextmanager
def _hidden_bar_of_jvm(session: SparkSession) -> Iterator[None]:
    """Remove a classic session's progress bar during the block, in any number of threads, and restore it.

    ``spark.ui.showConsoleProgress`` is read when a session starts, and our jobs last as long as the search. Spark has
    no method for it, so the context's own field is set. If that fails, the bar is shown.
    """
    global _hidden
    with _lock:
        _hidden += 1
        if _hidden == 1:
            with contextlib.suppress(Exception):
                _take_away(session)
    try:
        yield
    finally:
        with _lock:
            _hidden -= 1
            if _hidden == 0:
                with contextlib.suppress(Exception):  # of a session that was stopped, or whose JVM is gone
                    _put_back(session)


def _take_away(session: SparkSession) -> None:
    context = session.sparkContext._jsc.sc()
    bar = context.progressBar()
    if bar.isDefined():
        _field(context).set(context, _java(session).scala.Option.empty())
        bar.get().stop()


def _put_back(session: SparkSession) -> None:
    context = session.sparkContext._jsc.sc()
    wanted = context.getConf().getBoolean("spark.ui.showConsoleProgress", False)
    if wanted and context.progressBar().isEmpty():
        java = _java(session)
        _field(context).set(context, java.scala.Option.apply(java.org.apache.spark.ui.ConsoleProgressBar(context)))


def _java(session: SparkSession) -> Any:
    return session.sparkContext._jvm


def _field(context: Any) -> Any:
    field = context.getClass().getDeclaredField("_progressBar")
    field.setAccessible(True)
    return field


class ClusterDriverRun(SparkRun):
    """The job of the driver and its workers."""

    def __init__(
        self,
        session: SparkSession,
        plan: bytes,  # data of the driver's task, pickled
        task: WorkerTask,  # without the driver's address
        keys: Sequence[Keys],  # of each worker
        journal: str,  # directory of the run's journal
        profile: ResourceProfile | None,
    ) -> None:
        self._rows = [plan, *(msgspec.msgpack.encode(pairs.pairs) for pairs in keys)]
        self._journal = journal
        super().__init__(session, task, range(len(keys)), 0, (), profile, count=lambda: None, barrier=False)

    def _run_tasks(self) -> list[int]:
        """Give each task its own row, which no other receives; ``range`` always makes as many partitions as rows."""
        import pyarrow
        from pyspark.sql.functions import broadcast

        table = pyarrow.table({"id": list(range(len(self._rows))), "data": self._rows})
        size = len(self._rows)
        each = self._session.range(0, size, 1, size)
        rows = each.join(broadcast(self._session.createDataFrame(table)), "id")
        towards = setting(self._session, "spark.driver.host", "")
        function = entry(cluster_driver_task(self._task, size - 1, self._journal, towards))
        found = rows.mapInArrow(function, "worker bigint", profile=self._profile)
        return [row["worker"] for row in found.collect()]


def cluster_driver_task(
    task: WorkerTask, size: int, journal: str, towards: str
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return the function that each task runs.

    ``journal`` is the directory of the run's journal, and ``towards`` the host of Spark's own driver, which all
    executors reach.
    """

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            for row in batch.to_pylist():
                run_task(row["id"], row["data"], task, size, journal, towards, context)
                yield pyarrow.RecordBatch.from_pydict({"worker": [row["id"]]})

    return run


def run_task(
    number: int, data: bytes, task: WorkerTask, size: int, journal: str, towards: str, context: TaskContext
) -> None:
    """Run the driver, or one of the workers."""
    attempt = context.attemptNumber()
    if number == 0:
        import cloudpickle

        from maggy_like.cluster_driver.driver import drive

        drive(cloudpickle.loads(data), task, attempt, host_towards(towards))
        return
    from maggy_like.cluster_driver.worker import serve

    keys = Keys(msgspec.msgpack.decode(data, type=tuple[tuple[bytes, bytes], ...]))
    where = context_of(task, context, number - 1, 0, (b"", b""))
    serve(task, number - 1, size, attempt, keys, journal, where)


def host_towards(host: str) -> str:
    """Return this machine's address in the executors' network, from which it reaches Spark's own driver."""
    try:
        return address_towards(host, 1)
    except EngineError:
        return socket.gethostbyname(socket.gethostname())
