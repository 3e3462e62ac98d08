"""Sessions whose executors stay: local processes, local masters, and standalone clusters in many settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.twice import session, standalone, twice
from maggy_like import SparkEngine

FAIR = '<allocations><pool name="searches"><schedulingMode>FAIR</schedulingMode></pool></allocations>'


def without_spark() -> Outcome:
    return twice(engine="local", workers=2)


def on(master: str, conf: Mapping[str, str] | None = None) -> Outcome:
    with session(master, conf) as spark:
        return twice(spark)


def on_cluster(conf: Mapping[str, str] | None = None, *, cores: int = 1, gpus: int = 0) -> Outcome:
    with standalone(conf, cores=cores, gpus=gpus) as spark:
        return twice(spark)


def encrypted() -> Outcome:
    """The Master and the Workers must know the secret, too."""
    secret = os.urandom(16).hex()
    daemons = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
    }
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = " ".join(f"-D{key}={value}" for key, value in daemons.items())
    return on_cluster(daemons | {"spark.io.encryption.enabled": "true"})


def in_a_pool() -> Outcome:
    with open("fair.xml", "w") as file:
        file.write(FAIR)
    conf = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": os.path.abspath("fair.xml")}
    with session("local[2]", conf) as spark:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "searches")
        return twice(spark)


def busy() -> Outcome:
    """Half of the slots are taken by a job of the same user, and there is cached data."""
    with session("local[4]") as spark:
        cached = spark.range(100_000).cache()
        rows = cached.count()
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                assert cached.selectExpr("sum(id)").count() == 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            outcome = twice(spark, workers=2)
        finally:
            over.set()
            thread.join()
        if cached.count() != rows or not cached.is_cached:
            outcome.wrong.append("the cached data is gone")
        return outcome


def with_groups() -> Outcome:
    with session("local[2]") as spark:
        spark.sparkContext.setJobGroup("mine", "what I do today")
        spark.sparkContext.addJobTag("my-tag")
        outcome = twice(spark)
        kept = spark.sparkContext.getLocalProperty("spark.jobGroup.id"), set(spark.sparkContext.getJobTags())
        if kept != ("mine", {"my-tag"}):
            outcome.wrong.append(f"the group and the tags are now {kept}")
        return outcome


def no_barrier() -> Outcome:
    with standalone() as spark:
        return twice(spark, engine=SparkEngine(spark, barrier=False))


SETTINGS = {
    "local processes": without_spark,
    "local[2]": lambda: on("local[2]"),
    "local-cluster": lambda: on("local-cluster[2,1,1024]"),
    "standalone": on_cluster,
    "authentication, encryption": encrypted,
    "no worker reuse": lambda: on("local[2]", {"spark.python.worker.reuse": "false"}),
    "task.cpus=2": lambda: on_cluster({"spark.task.cpus": "2"}, cores=2),
    "FAIR pool": in_a_pool,
    "speculation": lambda: on_cluster({"spark.speculation": "true", "spark.speculation.interval": "100ms"}),
    "busy session, cached data": busy,
    "own job group and tags": with_groups,
    "GPUs, one a task": lambda: on_cluster(gpus=1),
    "GPUs, task-only profile": lambda: on_cluster({"spark.task.resource.gpu.amount": "0"}, gpus=1),
    "barrier=False": no_barrier,
}
