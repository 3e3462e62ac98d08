"""Spark Connect, with a real server in a process of its own."""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from maggy_like import ConnectServer
from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark import connection as module
from maggy_like.spark.connection import ServerSilent, ServerWatch, address_towards, driver_address, server_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_a_session_that_another_thread_stops_during_a_call_is_told_as_one() -> None:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient("sc://127.0.0.1:1")
    client._channel.close()
    with pytest.raises(EngineError, match="the Spark Connect session was stopped; create a new one"):
        module.ping(cast("SparkSession", SimpleNamespace(client=client)))


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


@pytest.mark.long
@pytest.mark.spark
def test_a_session_that_nobody_stopped_does_not_outlive_its_server(run_script: RunScript) -> None:
    pytest.importorskip("grpc")
    done = run_script(LEFT_OPEN, timeout=400)  # pyspark itself would ask a server that is gone for twenty minutes
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("rows 3\n")


# -- a server that stops answering, and answers again ------------------------------------------------


class Server:
    """What a ping finds: the test holds each ping until it wants the answer."""

    def __init__(self) -> None:
        self.is_silent = False
        self.asked, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def ping(self, _: Any) -> None:
        self.asked.release()
        self.go_on.acquire()
        if self.is_silent:
            raise ServerSilent("it does not answer", is_refused=False)

    def answer(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=60)
            self.go_on.release()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(module, "ping", found.ping)
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(module, "SILENT_PATIENCE", -1.0)
    return found


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "Spark Connect server"]


def end_all(server: Server) -> None:
    server.go_on.release()  # of a ping that may be under way
    for thread in watchers():
        thread.join(60)
        assert not thread.is_alive()


def test_jobs_beside_each_other_share_a_watch_and_it_ends_with_the_last(server: Server) -> None:
    watched = ServerWatch(object())  # type: ignore[arg-type]
    first, second = watched.begin(), watched.begin()
    assert first is second
    first.end()
    server.answer(3)
    assert len(watchers()) == 1
    second.end()
    end_all(server)
    third = watched.begin()
    assert third is not first
    third.end()
    end_all(server)


def test_a_job_after_a_silent_server_is_watched_anew_though_the_one_before_waits_on(server: Server) -> None:
    watched = ServerWatch(object())  # type: ignore[arg-type]
    before = watched.begin()  # never ends: pyspark waits for its answer
    server.is_silent = True
    end_all(server)
    assert before.gone == "it does not answer"
    server.is_silent = False
    after = watched.begin()
    server.answer(3)
    assert after is not before
    assert (after.gone, before.gone) == ("", "it does not answer")
    after.end()
    end_all(server)


# -- what the client of a session tells of its server ------------------------------------------------


pytest.importorskip("grpc")


def session_of(builder: Any) -> Any:
    return SimpleNamespace(client=SimpleNamespace(_builder=builder))


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("sc://far", ("far", 15002)),
        ("sc://far:443/;use_ssl=true;token=a%2Fb;x-databricks-cluster-id=0123", ("far", 443)),
        ("sc://[::1]:7077/;user_id=me", ("::1", 7077)),
        ("sc://[fe80::2]", ("fe80::2", 15002)),
    ],
)
def test_the_endpoint_is_that_of_the_url(url: str, endpoint: tuple[str, int]) -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert server_endpoint(session_of(DefaultChannelBuilder(url))) == endpoint


def test_a_builder_of_ones_own_has_a_host_or_says_which_argument_helps() -> None:
    from pyspark.sql.connect.client import ChannelBuilder

    class Proxied(ChannelBuilder):
        host = "far.example"

    class Silent(ChannelBuilder):
        pass

    assert server_endpoint(session_of(Proxied())) == ("far.example", 15002)
    with pytest.raises(EngineError, match=r"because the Silent of this Spark Connect .*SparkEngine\(host=\.\.\.\)"):
        server_endpoint(session_of(Silent()))


def test_workers_are_given_the_address_that_leads_to_the_server() -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert driver_address(session_of(DefaultChannelBuilder("sc://127.0.0.3:1/;token=t"))) == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1", 15002) == "::1"


def test_ipv4_is_preferred_and_no_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 1, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 1)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: both)
    assert address_towards("both", 1) == "127.0.0.1"

    def unknown(*args: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(EngineError, match=r"host 'nowhere' \(Name or service not known\); use engine=SparkEngine"):
        address_towards("nowhere", 1)
