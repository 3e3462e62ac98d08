"""Sessions whose executors come and go: dynamic allocation, Workers that come late, and Workers that leave."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from benchmarks.platforms.cancels import Midway
from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import lost, make_train, search, wrong
from benchmarks.platforms.twice import left, listening, session, twice
from maggy_like import StandaloneCluster
from optimizers import AttemptStarted, Event

SMALL = {"spark.executor.memory": "1g", "spark.executor.cores": "1"}


def allocated() -> Outcome:
    with (
        StandaloneCluster(2, memory="1g", dynamic=True) as machines,
        session(machines.master_url, machines.conf) as spark,
    ):
        return twice(spark, max_workers=2)


def with_a_shuffle_service() -> Outcome:
    """The service of a Worker has a port that its applications must know, so two Workers of one machine cannot."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(port)}
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = " ".join(f"-D{key}={value}" for key, value in service.items())
    with (
        StandaloneCluster(1, cores=2, memory="2g") as machines,
        session(
            machines.master_url, machines.conf | service | SMALL | {"spark.dynamicAllocation.enabled": "true"}
        ) as spark,
    ):
        return twice(spark, max_workers=2)


def disturbed(machines: StandaloneCluster, act: Callable[[], object]) -> Outcome:
    """A search in which something happens to its cluster; its later trials wait until a second worker runs one."""
    gate = Path("gate").resolve()
    with session(machines.master_url, machines.conf) as spark:
        outcome, ports, midway, workers = Outcome(), listening(), Midway(act), set()

        def on_event(event: Event) -> None:
            midway(event)
            if isinstance(event, AttemptStarted):
                workers.add(event.worker)
                if len(workers) > 1:
                    gate.touch()

        found = search("runs", train=make_train(0.5, gate), max_workers=2, callbacks=[on_event])
        midway.join()
        outcome.first, outcome.lost = found.first, lost(found.result)
        outcome.best = found.result.best_value or outcome.best
        outcome.wrong += wrong(found.result)
        if not gate.exists():
            outcome.wrong.append("no second worker ran a trial")
        outcome.leftovers += left(spark, ports)
        return outcome


def joined_late() -> Outcome:
    with StandaloneCluster(1, memory="1g", dynamic=True) as machines:
        return disturbed(machines, machines.add_worker)


def decommissioned() -> Outcome:
    """A Worker that is told to leave, as a node of a cloud that is taken back, leaves with its executors."""
    with StandaloneCluster(2, memory="1g", dynamic=True) as machines:
        return disturbed(machines, lambda: machines.decommission_worker(0))


SETTINGS = {
    "dynamic allocation": allocated,
    "dynamic, external shuffle service": with_a_shuffle_service,
    "dynamic, a Worker comes late": joined_late,
    "dynamic, a Worker decommissioned": decommissioned,
}
