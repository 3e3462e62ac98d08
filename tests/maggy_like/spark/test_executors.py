"""Executors of running jobs: what is recorded of one that leaves or is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.spark import executors as module
from maggy_like.spark.engine.job import SparkRun
from maggy_like.spark.executors import LEAVING, LOOK_INTERVAL, Executors, first_failure

MACHINE_GONE = "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: worker lost: it got away"
NODE_GONE = """ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason:
The executor with id 1 exited with exit code -1(unexpected).
The API gave the following brief reason: null"""
OUT_OF_MEMORY = NODE_GONE.replace("-1(unexpected)", "137(SIGKILL, possible container OOM)")
BROUGHT_DOWN = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: exit code 137"


def option(value: Any) -> Any:
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


class Jvm:
    """A SparkContext of the JVM with one job of one task."""

    def __init__(self) -> None:
        self.executors = ["1", "2"]
        self.decommissioned: set[str] = set()
        self.error: str | None = None
        tasks = [
            SimpleNamespace(attempt=lambda: 1, executorId=lambda: "2", errorMessage=lambda: option(None)),
            SimpleNamespace(attempt=lambda: 0, executorId=lambda: "1", errorMessage=lambda: option(self.error)),
        ]
        rows = SimpleNamespace(size=lambda: len(tasks), apply=lambda number: tasks[number])
        stage = SimpleNamespace(attemptId=lambda: 0)
        self._store = SimpleNamespace(lastStageAttempt=lambda _: stage, taskList=lambda *_: rows)
        job = SimpleNamespace(stageIds=lambda: [3])
        self._tracker = SimpleNamespace(getJobIdsForTag=lambda tag: [7], getJobInfo=lambda _: option(job))

    def session(self) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: self)))

    def schedulerBackend(self) -> Any:
        known = SimpleNamespace(mkString=lambda by: by.join(self.executors))
        return SimpleNamespace(getExecutorIds=lambda: known)

    def taskScheduler(self) -> Any:
        state = lambda executor: option(True if executor in self.decommissioned else None)  # noqa: E731
        return SimpleNamespace(getExecutorDecommissionState=state)

    def statusStore(self) -> Any:
        return self._store

    def statusTracker(self) -> Any:
        return self._tracker


def of_a_run(jvm: Jvm) -> SparkRun:
    run = SparkRun.__new__(SparkRun)
    run.tag, run.executor, run._session = "maggy-1", None, jvm.session()
    run._is_lost, run._ended = False, None
    run._thread = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
    run.cancelled = False  # type: ignore[attr-defined]
    run.cancel = lambda: setattr(run, "cancelled", True)  # type: ignore[method-assign]
    return run


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def look_later(executors: Executors, run: SparkRun) -> None:
        clock.now += LOOK_INTERVAL
        executors.attend([run])

    return look_later


def test_a_decommissioned_executor_is_about_to_leave(later: Any) -> None:
    jvm = Jvm()
    run, executors = of_a_run(jvm), Executors(jvm.session())
    later(executors, run)
    assert (run.executor, run.leaving) == ("1", "")
    jvm.decommissioned.add("1")
    executors.attend([run])  # too early to look again
    assert run.leaving == ""
    later(executors, run)
    assert run.leaving == LEAVING
    assert run.poll() is None


def test_a_run_of_which_spark_knows_nothing_yet_keeps_nobody_from_looking_at_the_others() -> None:
    jvm = Jvm()
    unknown, run = of_a_run(jvm), of_a_run(jvm)
    unknown.tag = "maggy-2"
    known = jvm.statusTracker().getJobIdsForTag
    jvm._tracker.getJobIdsForTag = lambda tag: known(tag) if tag == run.tag else 1 / 0
    jvm.decommissioned.add("1")
    Executors(jvm.session()).attend([unknown, run])
    assert (unknown.leaving, run.leaving) == ("", LEAVING)


@pytest.mark.parametrize(
    ("error", "with_node"), [(MACHINE_GONE, True), (BROUGHT_DOWN, False), (NODE_GONE, True), (OUT_OF_MEMORY, False)]
)
def test_an_executor_that_is_gone_ends_its_run_once_spark_says_why(later: Any, error: str, with_node: bool) -> None:
    jvm = Jvm()
    run, executors = of_a_run(jvm), Executors(jvm.session())
    jvm.executors.remove("1")
    later(executors, run)
    assert run.poll() is None
    jvm.error = error
    later(executors, run)
    reason = error.partition(" Reason:")[2].strip().partition(".\n")[0]
    assert run.poll() == f"its Spark executor is gone ({reason})"
    assert (run.with_node, run.cancelled) == (with_node, True)  # type: ignore[attr-defined]


def test_a_jvm_without_such_methods_tells_nothing_and_ends_nothing(later: Any) -> None:
    run = of_a_run(Jvm())
    later(Executors(SimpleNamespace(sparkContext=None)), run)  # type: ignore[arg-type]
    assert run.poll() is None
    assert first_failure(SimpleNamespace(sparkContext=None), "maggy-1") == ""  # type: ignore[arg-type]
