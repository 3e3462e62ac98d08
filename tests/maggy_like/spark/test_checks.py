"""Checks of a session: which settings and sizes of executors are refused, and with which remedy."""

from __future__ import annotations

import pytest
from settings_of_spark import ELASTIC, FIXED, RESOURCES, engine_on, session_of

from maggy_like.errors import EngineError
from maggy_like.spark.checks import check_resources
from maggy_like.spark.resources import read_resources
from maggy_like.spark.slots import Slots


def slots_on(conf: dict[str, str], *, with_resources: bool = False) -> Slots:
    return Slots(session_of(conf), read_resources(RESOURCES) if with_resources else None)


def test_a_local_master_is_refused_with_what_serves_there() -> None:
    with pytest.raises(
        EngineError, match=r"^resources must be used on a cluster, got master 'local\[2\]', .* LocalEngine"
    ):
        engine_on({"spark.master": "local[2]"}, resources=RESOURCES).check_workers("")


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
    engine_on(FIXED, resources=RESOURCES).check_workers("workers_per_trial=2")
    with pytest.raises(
        EngineError,
        match=rf"{words}.*increase that setting, or start the session with spark.dynamicAllocation.enabled=true",
    ):
        engine_on({**FIXED, **change}, resources=RESOURCES).check_workers("")


def test_what_python_has_beside_the_jvm_counts_on_yarn() -> None:
    yarn = {**FIXED, "spark.master": "yarn", "spark.executor.memory": "4g", "spark.executor.memoryOverhead": "16g"}
    engine_on(yarn, resources=RESOURCES).check_workers("")
    with pytest.raises(EngineError, match="and 4505 MB for each executor"):
        engine_on({**yarn, "spark.executor.memoryOverhead": ""}, resources=RESOURCES).check_workers("")


@pytest.mark.parametrize(("master", "name"), [("yarn", "YARN"), ("k8s://https://far", "Kubernetes")])
def test_yarn_and_kubernetes_need_a_script_that_finds_gpus(master: str, name: str) -> None:
    conf = {**ELASTIC, "spark.master": master}
    with pytest.raises(EngineError, match=rf"on {name} must have a script .*'discovery_script'"):
        engine_on(conf, resources=RESOURCES).check_workers("")
    engine_on(conf, resources={**RESOURCES, "discovery_script": "/opt/gpus.sh"}).check_workers("")
    engine_on(conf, resources={"cpu": 4}).check_workers("")


RAPIDS = {"spark.plugins": "com.nvidia.spark.SQLPlugin"}

MAP_IN_ARROW = "spark.rapids.sql.exec.MapInArrowExec"


@pytest.mark.parametrize("conf", [FIXED, ELASTIC])
def test_rapids_would_forget_what_workers_ask_for_unless_it_leaves_their_query_alone(conf: dict[str, str]) -> None:
    """The gang is a query where the driver runs in it; in a session with a JVM here it is none."""
    with pytest.raises(EngineError, match=rf"spark.plugins={RAPIDS['spark.plugins']}.*'{MAP_IN_ARROW}', 'false'"):
        engine_on(conf | RAPIDS, resources=RESOURCES).check_cluster_driver()
    for off in (MAP_IN_ARROW, "spark.rapids.sql.enabled"):
        check_resources(slots_on(conf | RAPIDS | {off: "false"}, with_resources=True), in_sql=True)
    engine_on(conf | RAPIDS, resources=RESOURCES).check_workers("")


def test_rapids_matters_where_a_worker_asks_for_more_than_the_session_s_tasks() -> None:
    tasks = {"spark.task.resource.gpu.amount": "1"}
    check_resources(slots_on(FIXED | RAPIDS | tasks), in_sql=True)
    with pytest.raises(EngineError, match=MAP_IN_ARROW):
        check_resources(slots_on(FIXED | RAPIDS), in_sql=True)  # a GPU each, by a profile
    with pytest.raises(EngineError, match="supports only executors with one GPU"):
        engine_on(ELASTIC | RAPIDS | {MAP_IN_ARROW: "false"}, resources={"gpu": 2}).check_workers("")


def test_workers_with_executors_of_their_own_may_train_together_and_come_one_by_one() -> None:
    engine_on(ELASTIC, resources=RESOURCES).check_workers("workers_per_trial=2")
    with pytest.raises(EngineError, match="SPARK-24942"):
        engine_on(ELASTIC, resources=RESOURCES, barrier=True).check_workers("")
    bounded = {**ELASTIC, "spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "16"}
    assert engine_on(bounded, resources=RESOURCES).most_workers() == 3  # one in each executor
    assert engine_on(bounded, resources={"gpu": 0.5}).most_workers() == 6


IDLE = "spark.python.worker.", "spark.sql.execution.pyspark.udf."


def idle(prefix: str, seconds: str, kills: str = "true") -> dict[str, str]:
    return {f"{prefix}idleTimeoutSeconds": seconds, f"{prefix}killOnIdleTimeout": kills}


def test_a_python_worker_must_not_be_killed_for_returning_nothing_until_the_search_is_over() -> None:
    worker, udf = IDLE
    said = rf"{worker}killOnIdleTimeout must be false while {worker}idleTimeoutSeconds=600, .* start the session with"
    with pytest.raises(EngineError, match=said):
        engine_on(FIXED | idle(worker, "600")).check_workers("")
    for conf in (idle(udf, "600"), idle(worker, "600"), idle(worker, "600", "false") | idle(udf, "10min")):
        with pytest.raises(EngineError, match=rf"use spark.conf.set\('{udf}killOnIdleTimeout', 'false'\)"):
            engine_on(FIXED | conf).check_cluster_driver()  # a query
    for conf in (idle(worker, "600", "false"), idle(worker, "0"), idle(worker, "0s"), idle(worker, ""), idle(udf, "9")):
        engine_on(FIXED | conf).check_workers("")
    engine_on(FIXED | idle(worker, "600") | idle(udf, "600", "false")).check_cluster_driver()
