"""Gangs that ask for resources of their own, on real executors: GPUs of several, parts of one, and shared executors.

That joins run on executors without GPUs beside such a gang, in a classic session: ``tests/examples/test_scripts.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from maggy_like import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(590)]

COMMON = """
import os, sys
from maggy_like import ConnectServer, SparkEngine, run, spark_session

def train(reporter):
    print("rank", os.environ["RANK"], "sees", sorted(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    reporter.report(score=1.0, step=1)

def train_on(workers, **resources):
    print("==", resources)
    run(train, engine=SparkEngine(resources=resources), workers=workers, directory="runs", progress="plain")
"""

DYNAMIC = (
    COMMON
    + """
if __name__ == "__main__":
    with ConnectServer(sys.argv[1], conf=eval(sys.argv[2])) as server:
        spark = spark_session(server.url)
        try:
            train_on(1, gpu=2, memory="512m")
            train_on(2, gpu=0.5, memory="512m")
        finally:
            spark.stop()  # before its server, which it would look for
"""
)

FIXED = (
    COMMON
    + """
if __name__ == "__main__":
    conf = eval(sys.argv[2]) | {"spark.dynamicAllocation.enabled": "false", "spark.cores.max": "2"}
    conf |= {"spark.executor.cores": "2", "spark.executor.resource.gpu.amount": "2",
             "spark.task.resource.gpu.amount": "0.25"}  # as joins by RAPIDS have it
    spark = spark_session(sys.argv[1], conf=conf)
    train_on(2, gpu=1)
    spark.stop()
"""
)


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[StandaloneCluster]:
    """One Worker with four made-up GPUs."""
    with StandaloneCluster(1, cores=4, memory="3g", gpus=4, dynamic=True) as cluster:
        cluster.conf |= {"spark.executor.cores": "1", "spark.executor.memory": "512m"}
        yield cluster


def seen_by(done: Any, resources: str) -> list[str]:
    """What the ranks of the training with these resources have printed of their GPUs."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.partition(f"== {{{resources}")[2].partition("== ")[0].splitlines()
    return sorted(line.partition("] ")[2] for line in lines if " sees " in line)


@pytest.mark.long
def test_a_connect_client_s_workers_have_several_gpus_or_share_one_on_executors_of_their_own(
    gpu_cluster: StandaloneCluster, run_script: Any
) -> None:
    pytest.importorskip("grpc")
    done = run_script(DYNAMIC, gpu_cluster.master_url, gpu_cluster.conf)
    assert [len(line.split("'")) for line in seen_by(done, "'gpu': 2")] == [5], done.stdout  # two addresses
    halves = seen_by(done, "'gpu': 0.5")
    assert [line[:6] for line in halves] == ["rank 0", "rank 1"], done.stdout
    assert len({line[6:] for line in halves}) == 1  # the same GPU
    assert len(halves[0].split("'")) == 3


@pytest.mark.long
def test_where_executors_do_not_come_and_go_the_gang_takes_whole_gpus_of_those_that_share_them(
    gpu_cluster: StandaloneCluster, run_script: Any
) -> None:
    done = run_script(FIXED, gpu_cluster.master_url, gpu_cluster.conf)
    ranks = seen_by(done, "'gpu': 1")
    assert [len(line.split("'")) for line in ranks] == [5, 5], done.stdout  # a GPU each, not two quarters of the same
    assert "is not true, so the search uses the executors of all the session's jobs" in done.stdout
