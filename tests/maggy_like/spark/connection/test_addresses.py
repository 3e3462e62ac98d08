"""Where the driver of a Spark session listens, who holds the slots that a gang waits for, and what is said of both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.errors import EngineError
from maggy_like.rpc.endpoint import ANY_PORT, Endpoint
from maggy_like.spark import connection as address
from maggy_like.spark.connection import driver_endpoint, host_hints
from maggy_like.spark.engine.job import SparkRun

ON_A_CLUSTER = """
import os, re, signal, socket, sys, threading
from pathlib import Path

import msgspec
from pyspark import InheritableThread

import maggy_like
import multi_worker_functions as fns
from gate import Gate
from maggy_like import Float, SparkEngine, lagom, spark_session
from maggy_like.driver import supervisor as first_workers
from maggy_like.errors import EngineError
from maggy_like.spark.engine import engine as other_jobs
from maggy_like.spark.engine.engine import running_jobs
from spark_jobs import active_jobs


class Screen:
    '''Stdout, which does something once it is to show a text.'''

    def __init__(self):
        self.out, self.awaited, self.act = sys.stdout, "nothing", None

    def write(self, text):
        self.out.write(text)
        if self.awaited in text:
            self.awaited, act = "nothing", self.act
            act()
        return len(text)

    def __getattr__(self, name):
        return getattr(self.out, name)


class Hasty(SparkEngine):
    '''Its workers look at once why no driver answers.'''

    def launch(self, task, *rest):
        return super().launch(msgspec.structs.replace(task, silence=1.0), *rest)


def train(x):
    return x


def hold(gate):
    '''A job of somebody else, which takes both slots until the gate is open.'''
    def wait(rows):
        open(path, "rb").close()
        yield from rows

    def run():
        spark.sparkContext.setJobGroup("etl", "nightly sums")
        spark.range(2, numPartitions=2).mapInArrow(wait, "id long").collect()

    path = os.path.abspath(gate.path)
    thread = InheritableThread(run)
    thread.start()
    while sum(job.tasks for job in running_jobs(spark)) < 2:
        threading.Event().wait(0.05)
    return thread


def free_range():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1], probe.getsockname()[1] + 50


def search(engine, **more):
    return lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=2, directory="runs", engine=engine,
                 **{"workers": 2, "progress": "plain", **more})


if __name__ == "__main__":
    sys.stdout = screen = Screen()
    other_jobs._HINTED.clear()
    spark = spark_session(sys.argv[1], conf=eval(sys.argv[2]))
    while SparkEngine(spark).slots() < 2:
        threading.Event().wait(0.1)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        try:
            search(SparkEngine(spark, port=taken.getsockname()[1]))
        except EngineError as error:
            print("TAKEN", error)
    print("FILES", os.path.exists("runs"))

    search(SparkEngine(spark))

    ports, ranks = free_range(), free_range()
    engine = SparkEngine(spark, host="::1", port=ports, rank_ports=f"{ranks[0]}-{ranks[1]}")
    answer = maggy_like.run(fns.meet, workers=2, directory="runs", engine=engine, progress=False)
    where, port = answer["environment"][0], int(engine._address.removeprefix("tcp://[::1]:"))
    print("IPV6", ports[0] <= port <= ports[1], where["MASTER_ADDR"], ranks[0] <= int(where["MASTER_PORT"]) <= ranks[1],
          answer["sum"])

    shared = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=2, directory="runs", progress="plain",
                   engine=SparkEngine(spark, reserve=1))
    print("WORKERS", {trial.worker for trial in shared.trials})

    try:
        search(Hasty(spark, host="127.0.0.2", bind="127.0.0.1"))
    except EngineError as error:
        print("CUT OFF", str(error).splitlines()[0])

    patience, first_workers.JOIN_PATIENCE = first_workers.JOIN_PATIENCE, 1.0
    gate = Gate(Path("first"))
    thread = hold(gate)
    screen.awaited, screen.act = "holds 2 slots", gate.open
    late = search(SparkEngine(spark))
    print("LATE", [trial.state.value for trial in late.trials])
    thread.join()

    gate = Gate(Path("second"))
    thread = hold(gate)
    screen.awaited, screen.act = "holds 2 slots", lambda: os.kill(os.getpid(), signal.SIGINT)
    stopped = search(SparkEngine(spark))
    active_jobs(spark, others=1)
    print("STOPPED", stopped.ending, len(stopped.trials), [job.name for job in running_jobs(spark)])
    gate.open()
    thread.join()
    sys.stdout, first_workers.JOIN_PATIENCE = screen.out, patience
"""


@pytest.mark.long
@pytest.mark.spark
def test_addresses_and_waiting_on_a_cluster(cluster_script: Any) -> None:
    done = cluster_script(ON_A_CLUSTER)
    out = done.stdout
    assert done.returncode == 0, out + done.stderr
    assert "TAKEN port must be free" in out, out
    assert "and this port is taken; use another" in out, out
    assert "FILES False" in out, out
    assert "IPV6 True ::1 True 3.0" in out, out
    assert out.count("the search takes all 2 slots of the Spark session until it ends") == 1, out
    assert "WORKERS {0}" in out, out
    assert "CUT OFF workers 0, 1 failed 3 times in a row: worker" in out, out
    assert "cannot reach the driver at tcp://127.0.0.2:" in out, out
    assert "connection refused" in out, out
    waiting = "still waiting for engine='spark' to start 2 workers: job "
    assert out.count(waiting) >= 2, out
    assert out.count("'nightly sums' of group 'etl' holds 2 slots") == 2, out
    assert "LATE ['completed', 'completed']" in out, out
    assert "STOPPED interrupted 0 ['nightly sums']" in out, out


class Classic:
    """A classic session that is asked for its settings alone."""

    _sc = None

    def __init__(self, **conf: str) -> None:
        settings = SimpleNamespace(get=lambda key, default: conf.get(key.replace(".", "_"), default))
        self.sparkContext = SimpleNamespace(_conf=settings)


@pytest.mark.parametrize(
    ("conf", "host", "bind", "expected"),
    [
        ({}, "", "", ("127.0.0.1", "127.0.0.1")),
        ({"spark_driver_host": "svc.ns.svc"}, "", "", ("svc.ns.svc", "svc.ns.svc")),
        ({"spark_driver_host": "svc.ns.svc", "spark_driver_bindAddress": "0.0.0.0"}, "", "", ("svc.ns.svc", "0.0.0.0")),
        ({"spark_driver_host": "[::1]", "spark_driver_bindAddress": "[::]"}, "", "", ("::1", "::")),
        ({"spark_driver_host": "10.0.0.5"}, "nat.example.com", "", ("nat.example.com", "10.0.0.5")),
        ({"spark_driver_host": "10.0.0.5"}, "own.example.com", "", ("own.example.com", "own.example.com")),
        ({"spark_driver_bindAddress": "10.0.0.5"}, "nat.example.com", "0.0.0.0", ("nat.example.com", "0.0.0.0")),
    ],
)
def test_what_is_not_given_spark_says(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], host: str, bind: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(address, "listens_here", lambda name: name.startswith("own"))
    found = driver_endpoint(Classic(**conf), host, bind, (20000, 20100))  # type: ignore[arg-type]
    assert found == Endpoint(*expected, (20000, 20100))


@pytest.mark.parametrize("bind", ["", "127.0.0.1"])
def test_a_name_that_no_local_worker_knows_is_refused_before_anything_starts(bind: str) -> None:
    unknown = "no.such.host.invalid"
    with pytest.raises(EngineError, match=r"host must resolve on this machine, .* got 'no.such.host.invalid'"):
        driver_endpoint(Classic(spark_master="local[2]"), unknown, bind, ANY_PORT)  # type: ignore[arg-type]
    elsewhere = Classic(spark_master="spark://there:7077", spark_driver_host="127.0.0.1")
    assert driver_endpoint(elsewhere, unknown, bind, ANY_PORT) == Endpoint(unknown, "127.0.0.1")  # type: ignore[arg-type]


def test_a_name_that_this_machine_does_not_know_is_hinted_at() -> None:
    assert [len(host_hints(host)) for host in ("", "127.0.0.1", "no.such.host.invalid")] == [0, 0, 1]


def test_a_worker_that_is_cut_off_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's words around it are left out, and the launch counts as one in vain."""
    said = "worker 3 on host 'n7' cannot reach the driver at tcp://10.0.0.5:20000: connection refused; open this port"
    text = f'x\nTraceback (most recent call last):\n  File "a.py", line 1\nmaggy_like.errors.WorkerError: {said}\n'
    run = SparkRun.__new__(SparkRun)
    assert run._explain(text, None) == said
    assert (run.is_cut_off, run.is_hopeless) == (True, False)
