"""Spark Connect, with a real server in a process of its own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like import ConnectServer
from maggy_like.errors import ConfigError, EngineError

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_server_is_no_master_of_another() -> None:
    with pytest.raises(ConfigError, match=r"got 'sc://far:1', .* use spark_session\('sc://far:1'\)"):
        ConnectServer("sc://far:1")


def test_a_server_that_fails_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such class:' $2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("maggy_like.spark.servers.ensure_java", lambda: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with pytest.raises(EngineError, match=r"Spark Connect server ended while it started(.|\n)*no such class: org"):
        ConnectServer()
    assert list((tmp_path / "tmp").iterdir()) == []


SERVED = """
import os, signal, sys, threading, time, warnings
from maggy_like import ConnectServer, Float, SparkEngine, lagom, spark_session
from maggy_like.errors import EngineError
from maggy_like.driver.supervisor import Supervisor
from maggy_like.spark import connection as server_watch
from optimizers.core.events import AttemptStarted

def train(x, reporter):
    while True:
        reporter.report(score=x)
        time.sleep(0.05)

def told(call):
    try:
        call()
    except EngineError as error:
        print(type(error).__name__, error, "| with", error.result and len(error.result.trials))

def search(function, **options):
    return lagom(function, {"x": Float(0, 1)}, optimizer="random", n_trials=2, directory="runs", progress="plain",
                 **options)

with ConnectServer("local[2]") as server:
    spark = spark_session(server.url)
    print("default", SparkEngine(spark).default_workers())
    told(lambda: search(train, workers=3))

    launch = Supervisor._launch

    def launch_and_press(self, *args):
        try:
            return launch(self, *args)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    Supervisor._launch = launch_and_press
    result = search(train, name="early")
    Supervisor._launch = launch
    print("ending", result.ending, "trials", len(result.trials), "left", spark.interruptAll())
    result = search(lambda x: x, name="early", resume=True)
    print("ending", result.ending, "trials", len(result.trials), "workers", len({t.worker for t in result.trials}) > 0)

    session = spark.session_id
    other = spark_session().builder.remote(f"{server.url}/;session_id={session}").create()
    other.stop()
    told(lambda: search(train))
    spark.stop()

    spark = spark_session(server.url)
    server_watch.REFUSED_PATIENCE = 1.0
    started = threading.Event()
    threading.Thread(target=lambda: (started.wait(), os.kill(server.pid, signal.SIGKILL)), daemon=True).start()
    told(lambda: search(train, callbacks=[lambda event: isinstance(event, AttemptStarted) and started.set()]))
    begun = time.monotonic()
    told(lambda: SparkEngine(spark))
    spark.stop()
print("over", flush=True)
"""


@pytest.mark.spark
def test_slots_interrupts_and_a_server_that_is_gone(run_script: RunScript) -> None:
    pytest.importorskip("grpc")
    done = run_script(SERVED, timeout=400)  # pyspark itself would ask a server that is gone for twenty minutes
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "default 2\n" in done.stdout
    assert (
        "EngineError workers must fit in the 2 slots that the Spark session has now, got 3; use workers=2 or fewer"
        in done.stdout
    )
    assert "ending interrupted trials 0 left []\n" in done.stdout
    assert "ending completed trials 2 workers True\n" in done.stdout
    assert "no longer knows this session" in done.stdout
    assert re.search(
        r"failed: the Spark Connect server at 127\.0\.0\.1:\d+ does not answer: .* \| with [12]", done.stdout
    )
    assert "EngineError the Spark Connect session was stopped; create a new one" in done.stdout
    assert done.stdout.endswith("over\n")


LEFT_OPEN = """
from maggy_like import ConnectServer, spark_session

with ConnectServer("local[1]") as server:
    spark = spark_session(server.url)
    print("rows", spark.range(3).count(), flush=True)
"""


@pytest.mark.spark
def test_a_session_that_nobody_stopped_does_not_outlive_its_server(run_script: RunScript) -> None:
    pytest.importorskip("grpc")
    done = run_script(LEFT_OPEN, timeout=400)  # pyspark itself would ask a server that is gone for twenty minutes
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("rows 3\n")
