from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wire import wait_for

from maggy_like import StandaloneCluster
from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark.servers import Daemon

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"cores": 0}, {"gpus": -1}, {"workers": "2"}, {"cores": None}])
def test_numbers_that_are_too_small_or_none(wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least [01], got {value!r}"):
        StandaloneCluster(**wrong)


@pytest.mark.parametrize("memory", [2048, "2 GB of RAM", None])
def test_memory_that_spark_does_not_understand(memory: Any) -> None:
    with pytest.raises(ConfigError, match=f"memory must be memory in Spark's notation, .*'20g'.*, got {memory!r}"):
        StandaloneCluster(memory=memory)


def test_a_process_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(TypeError):
        Daemon("Worker", ["true", 2048], {}, ready="")  # type: ignore[list-item]


@pytest.mark.parametrize("index", [-1, 2, "0"])
def test_only_workers_are_killed(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    class Process:
        pid = 0

        def __init__(self, name: str, *_: object) -> None:
            self.name = name

        def wait_ready(self, deadline: float) -> str:
            return "spark://127.0.0.1:7077"

        def kill(self) -> None:
            killed.append(self.name)

    monkeypatch.setattr("maggy_like.spark.servers.Daemon", Process)
    with StandaloneCluster(2) as cluster:
        for change in (cluster.kill_worker, cluster.start_worker, cluster.decommission_worker):
            with pytest.raises(ConfigError, match=f"^index must be .*, got {index!r}"):
                change(index)
        assert killed == []
        cluster.kill_worker(0)
        assert killed == ["Worker"]


def test_a_process_that_fails_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Master that ends at once: its last words are in the error, and the cluster's directory is gone."""
    program = tmp_path / "bin" / "spark-class"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $SPARK_DAEMON_JAVA_OPTS\necho 'no such class:' $1\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("maggy_like.spark.servers.ensure_java", lambda: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with pytest.raises(EngineError, match=r"Spark Master ended while it started(.|\n)*no such class: org") as told:
        StandaloneCluster(1)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert f"-Djava.io.tmpdir={tmp_path}/tmp/maggy_like-cluster-" in str(
        told.value
    )  # Java's files go with the directory


def test_a_process_outlives_the_thread_that_asked_for_it() -> None:
    """The death signal of Linux comes as the thread that made a process ends."""
    made: list[Daemon] = []
    command = ["sh", "-c", "echo ready: yes; exec sleep 1000"]
    thread = threading.Thread(target=lambda: made.append(Daemon("sleeper", command, os.environ, "ready: (.*)")))
    thread.start()
    thread.join()
    wait_for(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    assert made[0].wait_ready(time.monotonic() + 60.0) == "yes"
    watched = os.pidfd_open(made[0].pid)
    assert select.select([watched], [], [], 0.05)[0] == []
    made[0].kill()
    assert select.select([watched], [], [], 20)[0]
    os.close(watched)


def test_a_program_that_is_not_there_is_an_error_of_the_caller() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        Daemon("nobody", ["/no-such-program"], os.environ, "(.*)")


@pytest.mark.long
@pytest.mark.spark
def test_a_barrier_job_gets_the_gpus_of_both_workers(cluster_script: RunScript) -> None:
    done = cluster_script("""
import json, sys, time
from maggy_like import SparkEngine
from maggy_like import spark_session
spark = spark_session(sys.argv[1], conf=eval(sys.argv[2]))
while SparkEngine(spark).slots() < 2:  # executors register one by one
    time.sleep(0.1)

def task(batches):
    import pyarrow as pa
    from pyspark import BarrierTaskContext
    context = BarrierTaskContext.get()
    yield pa.RecordBatch.from_pylist([{
        "tasks": len(context.getTaskInfos()), "gpu": ",".join(context.resources()["gpu"].addresses)
    }])

job = spark.range(2, numPartitions=2).mapInArrow(task, "tasks long, gpu string", barrier=True)
print("SEEN", json.dumps(sorted((row.tasks, row.gpu) for row in job.collect())))
""")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.rpartition("SEEN ")[2]) == [[2, "0"], [2, "1"]]


PROGRAM = """#!/bin/sh
case $1 in
    *Master) echo 'Starting Spark master at spark://127.0.0.1:7077' ;;
    *) echo 'Successfully registered with master spark://127.0.0.1:7077' ;;
esac
exec sleep 1000
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory for temporary files, where Spark's programs are scripts that say that they are ready, and stay."""
    program = tmp_path / "bin" / "spark-class"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def test_stop_ends_the_processes_and_removes_the_files(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture ``standalone_cluster`` checks the same of Spark's own processes."""
    monkeypatch.setattr("maggy_like.spark.servers.ensure_java", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(programs))
    with StandaloneCluster(1) as cluster:
        pids = cluster.pids
        assert len(pids) == 2
        assert len(list(programs.iterdir())) == 1
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(programs.iterdir()) == []
    cluster.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_nothing_outlives_a_killed_caller(programs: Path) -> None:
    code = """
import signal
from maggy_like.spark import servers as cluster
cluster.ensure_java = lambda: None
made = cluster.StandaloneCluster(1)
print(*made.pids, flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(programs)},
    ) as caller:
        assert caller.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in caller.stdout.readline().split()]
        caller.send_signal(signal.SIGKILL)
    assert len(watched) == 2
    for pidfd in watched:
        assert select.select([pidfd], [], [], 60)[0], "a process of the cluster still runs"
        os.close(pidfd)
