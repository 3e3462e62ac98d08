"""Gangs that ask for GPUs on a cluster whose other jobs have none: stage-level scheduling on real executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from maggy_like import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(590)]

COMMON = """
import os, sys
from maggy_like import ConnectServer, Float, SparkEngine, lagom, run, spark_session

def train(x, reporter):
    reporter.report(score=x, step=1)
    return {"score": x, **{f"gpu{gpu}": 1.0 for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")}}

def train_together(reporter):
    print("rank", os.environ["RANK"], "sees", sorted(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    reporter.report(score=1.0, step=1)

def where(batches):
    import pyarrow
    from pyspark import TaskContext

    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"gpus": [len(TaskContext.get().resources())] * batch.num_rows})

def etl(spark):
    rows = spark.range(8, numPartitions=2).mapInArrow(where, "gpus long").collect()
    return sorted({row.gpus for row in rows})

def gpus_of_trials(resources, workers):
    result = lagom(train, {"x": Float(0, 1)}, engine=SparkEngine(resources=resources), optimizer="random", n_trials=4,
                   directory="runs", progress="plain", workers=workers)
    return sorted({len([key for key in trial.metrics if key.startswith("gpu")]) for trial in result.trials})
"""

CLASSIC = (
    COMMON
    + """
def executors(spark):
    '''Whether executors are of a profile, the kinds of resources that they own, and their cores.'''
    found, listed = set(), spark.sparkContext._jsc.sc().statusStore().executorList(False)
    for index in range(listed.size()):
        executor = listed.apply(index)
        if executor.id() != "driver":
            found.add((executor.resourceProfileId() > 0, executor.resources().size(), executor.totalCores()))
    return sorted(found)

if __name__ == "__main__":
    spark = spark_session(sys.argv[1], conf=eval(sys.argv[2]))
    print("etl", etl(spark))
    run(train_together, engine=SparkEngine(resources={"gpu": 2, "cpu": 1, "memory": "512m"}), workers=2,
        directory="runs", progress="plain")
    print("executors", executors(spark))
    run(train_together, engine=SparkEngine(resources={"gpu": 0.5, "memory": "512m"}), workers=2, directory="runs",
        progress="plain")
    spark.stop()
"""
)

CONNECT = (
    COMMON
    + """
if __name__ == "__main__":
    with ConnectServer(sys.argv[1], conf=eval(sys.argv[2])) as server:
        spark = spark_session(server.url)
        try:
            print("etl", etl(spark))
            print("one each", gpus_of_trials({"gpu": 1, "memory": "512m"}, 2))
        finally:
            spark.stop()  # before its server, which it would look for
"""
)

SHARED = (
    COMMON
    + """
if __name__ == "__main__":
    conf = eval(sys.argv[2]) | {"spark.dynamicAllocation.enabled": "false", "spark.cores.max": "2"}
    conf |= {"spark.executor.cores": "2", "spark.executor.resource.gpu.amount": "2",
             "spark.task.resource.gpu.amount": "0.25"}  # as the ETL of RAPIDS has it
    spark = spark_session(sys.argv[1], conf=conf)
    print("etl", etl(spark))
    run(train_together, engine=SparkEngine(resources={"gpu": 1}), workers=2, directory="runs", progress="plain")
    spark.stop()
"""
)


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[StandaloneCluster]:
    """One Worker with four made-up GPUs, and room for executors with and without some."""
    with StandaloneCluster(1, cores=4, memory="3g", gpus=4, dynamic=True) as cluster:
        small = {"spark.executor.cores": "1", "spark.executor.memory": "512m"}
        cluster.conf |= small | {"spark.dynamicAllocation.executorIdleTimeout": "2s"}
        yield cluster


def check(done: Any, *said: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in said if line not in done.stdout] == [], done.stdout + done.stderr


def test_only_the_gang_s_executors_have_gpus_and_its_ranks_see_as_many_as_it_asked_for(
    gpu_cluster: StandaloneCluster, run_script: Any
) -> None:
    done = run_script(CLASSIC, gpu_cluster.master_url, gpu_cluster.conf)
    check(done, "etl [0]", "executors [(False, 0, 1), (True, 1, 1)]")
    check(done, "rank 0 sees ['0', '1', '2', '3']", "rank 1 sees ['0', '1', '2', '3']")  # two each, on one machine
    halves = [line for line in done.stdout.splitlines() if "rank" in line and "sees" in line and line.count("'") == 2]
    assert len(halves) == 2, done.stdout  # two workers on one GPU


def test_a_spark_connect_client_asks_for_gpus_too(gpu_cluster: StandaloneCluster, run_script: Any) -> None:
    pytest.importorskip("grpc")
    check(run_script(CONNECT, gpu_cluster.master_url, gpu_cluster.conf), "etl [0]", "one each [1]")


def test_where_executors_do_not_come_and_go_the_gang_takes_whole_gpus_of_those_that_share_them(
    gpu_cluster: StandaloneCluster, run_script: Any
) -> None:
    done = run_script(SHARED, gpu_cluster.master_url, gpu_cluster.conf)
    check(done, "etl [1]", "rank 0 sees", "rank 1 sees", "is not true, so the gang takes the executors")
