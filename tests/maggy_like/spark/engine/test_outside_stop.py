"""A cancel from outside ends a search as Ctrl-C does; a fault never passes for one."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hand import Hand

from maggy_like import SparkEngine
from maggy_like.driver import supervisor
from maggy_like.driver.settings import TrainingSettings
from maggy_like.driver.state_machine.interface import StopRequested, WorkerLost
from maggy_like.driver.supervisor import Supervisor
from maggy_like.engines.base import EngineRun, EngineStopped
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.task import WorkerId, WorkerTask
from maggy_like.spark.connection import SESSION_STOPPED
from maggy_like.spark.engine.job import JavaEnd, SparkRun, cancelled_by
from optimizers.core.trial import FailureKind, TrialState

CLASSIC = """An error occurred while calling o179.collectToPython.
: org.apache.spark.SparkException: {}
\tat org.apache.spark.errors.SparkCoreErrors$.sparkJobCancelled(SparkCoreErrors.scala:222)
\tat org.apache.spark.scheduler.DAGScheduler.handleJobCancellation(DAGScheduler.scala:4404)
"""
CONNECT = "{}\n\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat org.apache.spark.X(Y.scala:222)"


# As PySpark 4.3 gives them.
@pytest.mark.parametrize(
    ("text", "by"),
    [
        (
            CLASSIC.format("[SPARK_JOB_CANCELLED] Job 0 cancelled part of cancelled job group august SQLSTATE: XXKDA"),
            "job 0 was cancelled with its job group 'august'",
        ),
        (
            CLASSIC.format("[SPARK_JOB_CANCELLED] Job 1 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA"),
            "all jobs of the Spark application were cancelled",
        ),
        (
            CLASSIC.format("[SPARK_JOB_CANCELLED] Job 2 cancelled part of cancelled job tags mine SQLSTATE: XXKDA"),
            "job 2 was cancelled with its job tag 'mine'",
        ),
        (
            CLASSIC.format("[SPARK_JOB_CANCELLED] Job 3 cancelled because killed via the Web UI SQLSTATE: XXKDA"),
            "job 3 was cancelled: killed via the Web UI",
        ),
        (
            CLASSIC.format("[SPARK_JOB_CANCELLED] Job 3 cancelled  SQLSTATE: XXKDA"),
            "job 3 was cancelled",
        ),
        (CLASSIC.format("Job 11 cancelled because SparkContext was shut down"), SESSION_STOPPED),
        (CLASSIC.format("Job aborted due to stage failure: Master removed our application: KILLED"), "was killed"),
        (
            CONNECT.format("[SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA"),
            "all jobs of the Spark application were cancelled",
        ),
        (
            CONNECT.format(
                "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"
            ),
            "its Spark Connect operation was interrupted",
        ),
        (
            CONNECT.format("(org.apache.spark.SparkSQLException) [INVALID_HANDLE.SESSION_CLOSED] The handle x is"),
            SESSION_STOPPED,
        ),
        ("Cannot invoke RPC: Channel closed!", SESSION_STOPPED),
        (
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.CANCELLED\n"
            '\tdetails = "Channel closed!"\n\tdebug_error_string = "None"\n>',
            SESSION_STOPPED,
        ),
        (
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.CANCELLED\n"
            '\tdetails = "Stream removed (Channel closed!)"\n\tdebug_error_string = "None"\n>',
            SESSION_STOPPED,
        ),
    ],
)
def test_spark_s_reason_is_told_in_words(text: str, by: str) -> None:
    assert by in cancelled_by(text)


ABORTED = "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure "


@pytest.mark.parametrize(
    "text",
    [
        CLASSIC.format(
            f"{ABORTED}reason: Stage failed because barrier task ResultTask(10, 0) finished unsuccessfully.\n"
            "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python "
            "worker: Traceback (most recent call last):\n"
            '  File "x.py", line 78, in f\n    raise E\nValueError: [SPARK_JOB_CANCELLED] Job 3 cancelled \n'
        ),
        CLASSIC.format(
            f"{ABORTED}reason: Stage failed because barrier task ResultTask(9, 1) finished unsuccessfully.\n"
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with 137"
        ),
        CLASSIC.format("Job aborted due to stage failure: Master removed our application: FAILED"),
        CLASSIC.format("[SPARK-24942]: Barrier execution mode does not support dynamic resource allocation for now."),
        CLASSIC.format("Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times: Job 3 of 4 is lost"),
        "An error occurred while calling o1.collectToPython",
        "",
    ],
)
def test_a_fault_is_no_cancel(text: str) -> None:
    assert cancelled_by(text) == ""


def run_that_ended(session: Any, text: str, *, cancelled: bool, gone: JavaEnd | None = None) -> str:
    run = SparkRun.__new__(SparkRun)
    run._session, run.tag, run._is_cancelled = session, "maggy-0a1b", cancelled
    return run._stopped_by(text, gone)


OURS = CLASSIC.format("[SPARK_JOB_CANCELLED] Job 2 cancelled part of cancelled job tags maggy-0a1b SQLSTATE: XXKDA")
OF_ALL = CLASSIC.format("[SPARK_JOB_CANCELLED] Job 2 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA")
INTERRUPTED = CONNECT.format("(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled.")


def test_our_own_cancel_is_none_from_outside() -> None:
    classic = SimpleNamespace(_sc=None, sparkContext=SimpleNamespace(_jsc=object()))
    connect = SimpleNamespace(is_stopped=False)
    assert run_that_ended(classic, OURS, cancelled=True) == ""
    assert run_that_ended(connect, INTERRUPTED, cancelled=True) == ""
    # Somebody was quicker than we were.
    assert "all jobs" in run_that_ended(classic, OF_ALL, cancelled=True)
    assert "job tag" in run_that_ended(classic, OURS, cancelled=False)


def test_a_session_that_was_stopped_is_one_whatever_its_error_says() -> None:
    classic = SimpleNamespace(_sc=None, sparkContext=SimpleNamespace(_jsc=None))
    connect = SimpleNamespace(is_stopped=True)
    for session in (classic, connect):
        assert run_that_ended(session, "'NoneType' object has no attribute 'sc'", cancelled=False) == SESSION_STOPPED


def test_a_java_process_that_was_asked_to_end_stops_the_search_and_one_that_crashed_does_not() -> None:
    classic = SimpleNamespace(_sc=None)
    shut_down = JavaEnd("it is gone: exit status 143", was_shut_down=True)
    assert run_that_ended(classic, "Answer from Java side is empty", cancelled=False, gone=shut_down) == shut_down.text
    crashed = JavaEnd("it is gone: killed by SIGKILL")
    assert run_that_ended(classic, "Answer from Java side is empty", cancelled=False, gone=crashed) == ""


TASK = WorkerTask("tcp://x", b"", "run", b"", (), (), (), "file:///store", "logs")


class Posted:
    """A driver that only keeps what it is told."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.lines: list[Any] = []
        self.has_ended = self.expects_no_more = False
        self.replacements = SimpleNamespace(empty=lambda: True)
        self.ready: set[WorkerId] = set()
        self.met: set[WorkerId] = set()

    def post(self, event: Any) -> None:
        self.posted.append(event)
        self.has_ended |= isinstance(event, StopRequested)

    def expect_no_more(self) -> None:
        self.expects_no_more = True


class Ended(EngineRun):
    """A run of two workers that somebody has cancelled."""

    stopped_by = "all jobs were cancelled"

    def __init__(self) -> None:
        super().__init__((0, 1), 3)

    def poll(self) -> str:
        return self.stopped_by

    def cancel(self) -> None:
        raise AssertionError("it has ended")

    def wait(self, _: float) -> bool:
        return True


class Engine:
    """An engine that launches what has ended already."""

    name = "spark"

    def launch(self, *_: Any) -> list[EngineRun]:
        return [Ended()]

    def attend(self, _: Any) -> None:
        pass


def test_a_gang_that_was_cancelled_is_not_launched_again_and_not_waited_for() -> None:
    driver = Posted()
    gang = Supervisor(driver, Engine(), TASK, lambda _: ("", ""), 2, 2, "")  # type: ignore[arg-type]
    gang.attend()
    by = Ended.stopped_by
    workers = [WorkerLost(WorkerId(index, 3), by) for index in (0, 1)]
    assert driver.posted == [StopRequested(Ending.CANCELLED, by=by), *workers]
    assert driver.expects_no_more
    gang.leave((), timeout=0.0)


class Fallen(Ended):
    """A run of two workers that has failed."""

    stopped_by = ""

    def poll(self) -> str:
        return "it fell"


def test_a_session_that_is_stopped_while_the_gang_waits_for_slots_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped(Engine):
        def launch(self, *_: Any) -> list[EngineRun]:
            return [Fallen()]

        def slots(self) -> int:
            raise EngineStopped("the Spark session was stopped")

    driver, hours = Posted(), itertools.count(step=3600.0)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    gang = Supervisor(driver, Stopped(), TASK, lambda _: ("", ""), 2, 2, "")  # type: ignore[arg-type]
    gang.attend()
    gang.attend()
    assert driver.posted[-1] == StopRequested(Ending.CANCELLED, by="the Spark session was stopped")


def test_what_ran_loses_nothing_and_no_training_follows() -> None:
    hand = Hand(training=TrainingSettings(5)).start()
    workers = [hand.join(index) for index in (0, 1)]
    hand.report(workers[0], 1, 0.5)
    hand.tell(StopRequested(Ending.CANCELLED, by="all jobs were cancelled"))
    hand.tell(*(WorkerLost(worker, "all jobs were cancelled") for worker in workers))
    assert hand.machine.ending == "cancelled"
    assert hand.machine.stopped_by == "all jobs were cancelled"
    assert hand.machine.is_over
    assert "stopped from outside: all jobs were cancelled" in hand.shown
    assert not any("lost" in line for line in hand.shown)
    assert [trial.state for trial in hand.study.trials] == [TrialState.PENDING, TrialState.PENDING]
    assert [trial.losses + trial.stage_losses for trial in hand.study.trials] == [0, 0]
    failures = {(trial.failure.kind, trial.failure.message) for trial in hand.study.trials if trial.failure}
    assert failures == {(FailureKind.DRIVER_LOST, "stopped from outside: all jobs were cancelled")}


CONNECT_SCRIPT = """
import json, sys, time
from maggy_like import Float, lagom, spark_session
from optimizers.core.events import Measured

spark = spark_session(sys.argv[1])

def train(x, reporter):
    for step in range(1, reporter.budget + 1):
        reporter.report(score=x, step=step)
        time.sleep(0.02)

def release():  # the first half of stop(): the server interrupts what runs before the client knows of its end
    spark.client.release_session()

stops = {"a": spark.interruptAll, "b": lambda: spark.interruptTag("maggy_like-b"), "c": release, "d": spark.stop}
for name in "abcd":
    at, stop = [], stops[name]
    def on_event(event):
        if isinstance(event, Measured) and not at:
            at.append(time.monotonic())
            stop()
    found = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=4, max_budget=100_000, directory="runs",
                  workers=2, progress="plain", callbacks=[on_event], name=name)
    print("TOLD", json.dumps([found.ending, [trial.losses + trial.stage_losses for trial in found.trials],
                              time.monotonic() - at[0]]), flush=True)
    if name == "c":
        spark.stop()
        spark = spark_session(sys.argv[1])
        stops["d"] = spark.stop
"""


@pytest.mark.long
@pytest.mark.spark
def test_an_interrupt_of_a_connect_session_is_a_cancel(run_script: Any, connect_server: Any) -> None:
    done = run_script(CONNECT_SCRIPT, connect_server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert [ending for ending, _, _ in told] == ["cancelled"] * 4
    assert not any(any(lost) for _, lost, _ in told)
    assert all(seconds < 100 for _, _, seconds in told)
    assert done.stdout.count("stopped from outside: its Spark Connect operation was interrupted") == 2
    assert done.stdout.count("stopped from outside: the Spark session was stopped") == 2


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_session_that_ends_before_the_thread_of_a_run_begins_is_for_the_run_to_find_out(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    context = SimpleNamespace(_jsc=object())
    session: Any = SimpleNamespace(_sc=context, sparkContext=context, conf=SimpleNamespace(get={}.get))

    def inherit_nothing(session: Any) -> Any:
        def fail() -> None:
            raise AttributeError("'NoneType' object has no attribute 'sc'")

        return lambda target: fail

    monkeypatch.setattr("pyspark.inheritable_thread_target", inherit_nothing)
    execute = SparkEngine(session).inheriting(lambda: "executed")
    if is_stopped:
        context._jsc = None
        assert execute() == "executed"
    else:
        with pytest.raises(AttributeError, match="has no attribute 'sc'"):
            execute()
