"""Slots, resources and executors: how long they are awaited, what each worker gets, and why one was lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like import SparkEngine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark import capacity as module
from maggy_like.spark.capacity import (
    FIRST_PATIENCE,
    LEAVING,
    LOOK_INTERVAL,
    NEXT_PATIENCE,
    SETTLING,
    Executors,
    Resources,
    Slots,
    check_resources,
    first_failure,
    megabytes,
    own_executors,
    read_resources,
    shared_executors,
)
from maggy_like.spark.engine.job import SparkRun

Wait = Callable[..., tuple[int | None, float]]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """What ``Slots.wait(wanted)`` says of executors that come at given seconds, and how many seconds it took."""

    def wait_for(wanted: int | None, *coming: float, master: str = "spark://far:7077") -> tuple[int | None, float]:
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        class Executors(Slots):
            def __init__(self) -> None:
                pass

            def count(self) -> int:
                return sum(at <= now for at in coming)

            def conf(self, key: str, default: str) -> str:
                return {"spark.master": master}.get(key, default)

        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        return Executors().wait(wanted), now

    return wait_for


def test_as_many_as_are_wanted_are_enough(wait: Wait) -> None:
    assert wait(2, 0.0, 0.0, 5.0) == (2, 0.0)
    assert wait(2, 0.0, 9.0, 20.0) == (2, pytest.approx(9.0, abs=0.2))


def test_the_first_may_take_long_and_each_further_one_gets_its_time(wait: Wait) -> None:
    first, third = FIRST_PATIENCE - 1, FIRST_PATIENCE + 2 * NEXT_PATIENCE - 5
    assert wait(3, first, first + NEXT_PATIENCE - 1, third) == (3, pytest.approx(third, abs=0.2))


def test_a_gang_that_is_too_large_is_refused_when_no_more_come(wait: Wait) -> None:
    assert wait(3, 0.0, 1.0) == (2, pytest.approx(1.0 + NEXT_PATIENCE, abs=0.5))
    assert wait(3) == (0, pytest.approx(FIRST_PATIENCE, abs=0.5))


def test_where_any_number_will_do_it_has_to_settle(wait: Wait) -> None:
    assert wait(None, 4.0, 5.0, 5.0 + SETTLING - 0.5) == (3, pytest.approx(5.0 + 2 * SETTLING - 0.5, abs=0.5))


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_local_master_has_all_its_slots_at_once(wait: Wait, master: str) -> None:
    assert wait(3, 0.0, 0.0, 1.0, master=master) == (2, 0.0)


def test_a_cluster_in_one_process_is_waited_for(wait: Wait) -> None:
    assert wait(2, 3.0, 3.0, master="local-cluster[2,1,1024]") == (2, pytest.approx(3.0, abs=0.2))


ASKED = {"gpu": 1, "cpu": 4, "memory": "20g"}

ELASTIC = {"spark.master": "spark://far:7077", "spark.dynamicAllocation.enabled": "true"}

FIXED = {"spark.master": "spark://far:7077", "spark.executor.resource.gpu.amount": "2",
         "spark.executor.cores": "8", "spark.executor.memory": "40g"}  # fmt: skip


class Session(SimpleNamespace):
    """A classic session of which only the settings are known."""

    __hash__ = object.__hash__


def session_of(conf: dict[str, str]) -> Any:
    return Session(_sc=None, conf=SimpleNamespace(get=conf.get))


def engine_on(conf: dict[str, str], **options: Any) -> SparkEngine:
    return SparkEngine(session_of(conf), **options)


def slots_on(conf: dict[str, str], asked: Any = None) -> Slots:
    return Slots(session_of(conf), None if asked is None else read_resources(asked))


def test_resources_are_read_as_spark_writes_them() -> None:
    assert read_resources(ASKED) == Resources(1, 4, 20480)
    assert read_resources({"memory": "1536M"}).memory == 1536
    assert megabytes("m", "2tb") == 2 * 1024**2
    assert [Resources(gpu).sharing for gpu in (0, 1, 4, 0.5, 0.3, 0.25)] == [1, 1, 1, 2, 3, 4]
    assert [Resources(gpu).whole_gpus for gpu in (0, 1, 4, 0.5)] == [0, 1, 4, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "must be a dict such as"),
        ("gpu", "must be a dict such as"),
        ({"gpus": 1}, "did you mean 'gpu'"),
        ({"gpu": 1.5}, "an integer, or a fraction such as 0.5, got 1.5"),
        ({"gpu": -1}, "an integer, or a fraction such as 0.5, got -1"),
        ({"gpu": True}, "got True"),
        ({"gpu": "1"}, "got '1'"),
        ({"gpu": 0}, "must have GPUs, cores or memory"),
        ({"cpu": 0}, r"resources\['cpu'\] must be an integer of at least 1, got 0"),
        ({"memory": 20}, "such as '20g' or '512m', got 20"),
        ({"memory": "20 gigs"}, "such as '20g' or '512m', got '20 gigs'"),
        ({"memory": "20"}, "must be at least 512m, got '20': 20 MB"),
        ({"gpu": 1, "vendor": ""}, "must be text, got ''"),
    ],
)
def test_other_resources_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_on(ELASTIC, resources=wrong)


def test_a_local_master_is_refused_with_what_serves_there() -> None:
    with pytest.raises(
        EngineError, match=r"^resources must be used on a cluster, got master 'local\[2\]', .* LocalEngine"
    ):
        engine_on({"spark.master": "local[2]"}, resources=ASKED).check_workers("")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"spark.executor.resource.gpu.amount": "0"},
            r"got 1 GPU for each worker and 0 GPUs for each executor .*gpu.amount=0",
        ),
        (
            {"spark.executor.cores": "2"},
            r"got 4 cores for each worker and 2 cores for each executor \(spark.executor.cores=2\)",
        ),
        (
            {"spark.executor.memory": "8g"},
            r"got 20480 MB for each worker and 8192 MB for each executor \(spark.executor.memory=8g\)",
        ),
    ],
)
def test_executors_that_are_too_small_are_told_where_no_others_come(change: dict[str, str], words: str) -> None:
    engine_on(FIXED, resources=ASKED).check_workers("workers_per_trial=2")
    with pytest.raises(
        EngineError,
        match=rf"{words}.*increase that setting, or start the session with spark.dynamicAllocation.enabled=true",
    ):
        engine_on({**FIXED, **change}, resources=ASKED).check_workers("")


def test_what_python_has_beside_the_jvm_counts_on_yarn() -> None:
    yarn = {**FIXED, "spark.master": "yarn", "spark.executor.memory": "4g", "spark.executor.memoryOverhead": "16g"}
    engine_on(yarn, resources=ASKED).check_workers("")
    with pytest.raises(EngineError, match="and 4505 MB for each executor"):
        engine_on({**yarn, "spark.executor.memoryOverhead": ""}, resources=ASKED).check_workers("")


@pytest.mark.parametrize(("master", "name"), [("yarn", "YARN"), ("k8s://https://far", "Kubernetes")])
def test_yarn_and_kubernetes_need_a_script_that_finds_gpus(master: str, name: str) -> None:
    conf = {**ELASTIC, "spark.master": master}
    with pytest.raises(EngineError, match=rf"on {name} must have a script .*'discovery_script'"):
        engine_on(conf, resources=ASKED).check_workers("")
    engine_on(conf, resources={**ASKED, "discovery_script": "/opt/gpus.sh"}).check_workers("")
    engine_on(conf, resources={"cpu": 4}).check_workers("")


RAPIDS = {"spark.plugins": "com.nvidia.spark.SQLPlugin"}

MAP_IN_ARROW = "spark.rapids.sql.exec.MapInArrowExec"


@pytest.mark.parametrize("conf", [FIXED, ELASTIC])
def test_rapids_would_forget_what_workers_ask_for_unless_it_leaves_their_query_alone(conf: dict[str, str]) -> None:
    """The gang is a query where the driver runs in it; in a session with a JVM here it is none."""
    with pytest.raises(EngineError, match=rf"spark.plugins={RAPIDS['spark.plugins']}.*'{MAP_IN_ARROW}', 'false'"):
        engine_on(conf | RAPIDS, resources=ASKED).check_cluster_driver()
    for off in (MAP_IN_ARROW, "spark.rapids.sql.enabled"):
        check_resources(slots_on(conf | RAPIDS | {off: "false"}, ASKED), in_sql=True)
    engine_on(conf | RAPIDS, resources=ASKED).check_workers("")


def test_rapids_matters_where_a_worker_asks_for_more_than_the_session_s_tasks() -> None:
    tasks = {"spark.task.resource.gpu.amount": "1"}
    check_resources(slots_on(FIXED | RAPIDS | tasks), in_sql=True)
    with pytest.raises(EngineError, match=MAP_IN_ARROW):
        check_resources(slots_on(FIXED | RAPIDS), in_sql=True)  # a GPU each, by a profile
    with pytest.raises(EngineError, match="supports only executors with one GPU"):
        engine_on(ELASTIC | RAPIDS | {MAP_IN_ARROW: "false"}, resources={"gpu": 2}).check_workers("")


def test_workers_with_executors_of_their_own_may_train_together_and_come_one_by_one() -> None:
    engine_on(ELASTIC, resources=ASKED).check_workers("workers_per_trial=2")
    with pytest.raises(EngineError, match="SPARK-24942"):
        engine_on(ELASTIC, resources=ASKED, barrier=True).check_workers("")
    bounded = {**ELASTIC, "spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "16"}
    assert engine_on(bounded, resources=ASKED).most_workers() == 3  # one in each executor
    assert engine_on(bounded, resources={"gpu": 0.5}).most_workers() == 6


def amounts(requests: Any) -> dict[str, float]:
    return {name: request.amount for name, request in requests.items()}


def test_an_executor_of_its_own_is_as_large_as_the_workers_that_share_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.is_remote", lambda: True)  # profiles without a JVM
    session: Any = Session(_sc=None)
    whole = own_executors(session, read_resources(ASKED), splits_memory=False, task_cpus=1)
    assert amounts(whole.executorResources) == {"cores": 4, "memory": 20480, "gpu": 1}
    assert amounts(whole.taskResources) == {"cpus": 4, "gpu": 1}
    half = own_executors(session, Resources(0.5, memory=1024), splits_memory=False, task_cpus=2)
    assert amounts(half.executorResources) == {"cores": 4, "memory": 2048, "gpu": 1}
    assert amounts(half.taskResources) == {"cpus": 2, "gpu": 0.5}


def test_where_the_cluster_manager_bounds_python_s_memory_the_jvm_takes_little_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.sql.is_remote", lambda: True)
    session: Any = Session(_sc=None)
    profile = own_executors(session, read_resources(ASKED), splits_memory=True, task_cpus=1)
    assert amounts(profile.executorResources) == {"cores": 4, "memory": 1024, "memoryOverhead": 19456, "gpu": 1}


def test_a_session_asks_for_the_same_executors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.is_remote", lambda: True)
    session, other = Session(_sc=None), Session(_sc=None)
    first: Any = shared_executors(session, 1, 2)  # type: ignore[arg-type]
    assert shared_executors(session, 1, 2) is first  # type: ignore[arg-type]
    assert shared_executors(session, 2, 2) is not first  # type: ignore[arg-type]
    assert shared_executors(other, 1, 2) is not first  # type: ignore[arg-type]


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
