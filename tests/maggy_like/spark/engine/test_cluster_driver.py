"""A search whose driver is a task of the application, where executors cannot reach the client."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maggy_like import load_run

if TYPE_CHECKING:
    from maggy_like import ConnectServer

pytestmark = pytest.mark.spark

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]

SUPPORT = Path(__file__).parents[3] / "support"

CLIENT = """
import socket, sys, time
from maggy_like import Float, lagom, load_run, spark_session
from maggy_like.errors import EngineError

def train(x, reporter):
    for step in range(1, reporter.budget + 1):
        reporter.report(quality=step - (x - 0.3) ** 2, step=step)

def last(x, reporter):
    step = 0
    while True:
        step += 1
        reporter.report(quality=x, step=step)
        time.sleep(0.05)

def search(function, name, **options):
    return lagom(function, {"x": Float(0, 1)}, driver="cluster", directory=sys.argv[2], name=name,
                 **{"n_trials": 4, "max_budget": 9, "progress": "plain", **options})

if __name__ == "__main__":
    spark = spark_session(sys.argv[1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 1))
            print("there is a route")
        except OSError:
            print("there is no route")
    try:
        search(train, "large", workers=2)
    except EngineError as error:
        print("refused:", error)
    events = []
    result = search(train, "whole", workers=1, callbacks=[events.append], train_best=3)
    print("ended:", result.ending, len(result.trials), len(events) > 0, result.training.trial.step)
    print("read:", load_run(sys.argv[2] + "/whole").ending)
    told = [lambda event: print("event", flush=True)]
    search(last, "orphan", workers=1, optimizer="random", max_budget=10**9, callbacks=told)
"""


@contextlib.contextmanager
def relay(source: str, target: str, *before: str) -> Iterator[str]:
    """A relay in a process of its own; gives the line that it prints."""
    command = [*before, sys.executable, str(SUPPORT / "relay.py"), source, target]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.fixture
def island() -> Iterator[list[str]]:
    """What starts a command in a network that leads nowhere."""
    name = f"maggy{secrets.token_hex(3)}"
    if os.geteuid() != 0 or shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name]).returncode:
        pytest.skip("needs root and `ip netns`")
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture
def client(
    connect_server: ConnectServer, island: list[str], tmp_path: Path
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Runs a script whose one way out of its network is a relay to the Connect server."""
    path = str(tmp_path / "relay")
    with (
        contextlib.ExitStack() as started,
        relay(path, str(connect_server.port)),
        relay("0", path, *island) as port,
    ):

        def start(code: str) -> subprocess.Popen[str]:
            script = tmp_path / "client.py"
            script.write_text(code)
            process = subprocess.Popen(
                [*island, sys.executable, str(script), f"sc://127.0.0.1:{port}", str(tmp_path / "runs")],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

            def end() -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

            started.callback(end)
            return process

        yield start


@pytest.mark.long
def test_a_client_that_nobody_reaches_goes_away_and_another_takes_its_place(
    client: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = client(CLIENT)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "event\n":
            break
    told = "".join(lines)
    assert "there is no route" in told
    assert "refused: workers=2 and the driver need 3 slots, and engine='spark' has 2; pass workers=1 or fewer" in told
    assert "ended: completed 4 True 3" in told
    assert "read: completed" in told
    os.killpg(process.pid, signal.SIGKILL)  # as a laptop that is closed: the search goes on without it
    process.wait()
    run = load_run(tmp_path / "runs" / "orphan")
    assert run.ending == "running"
    heard = []

    def stop(event: object) -> None:
        heard.append(event)
        if len(heard) == 3:
            run.stop()

    result = run.watch(progress=False, callbacks=[stop])
    assert result.ending == "stopped"
    assert len(result.trials) >= 1


KILLED = """
import json, os, sys, time
from urllib.parse import urlsplit
import psutil
from maggy_like import Float, lagom, spark_session
from optimizers.core.events import AttemptEnded

directory, ends, killed = sys.argv[3], [], []

def train(x, reporter):
    while reporter.trial > 1 and not os.path.exists(f"{directory}/is_killed"):  # the search must not end before
        time.sleep(0.05)
    start = reporter.restore() or 0
    for step in range(start + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(quality=step - (x - 0.3) ** 2, step=step)

def executor(port):
    listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port)
    process = psutil.Process(next(listening).pid)
    while "java" not in process.name():
        process = process.parent()
    return process

def kill(event):
    ends.append(event) if isinstance(event, AttemptEnded) else None
    if len(ends) == 2 and not killed:
        killed.append(json.load(open(f"{directory}/killed/driver.json")))
        executor(urlsplit(killed[0]["address"]).port).kill()
        open(f"{directory}/is_killed", "w").close()

if __name__ == "__main__":
    spark = spark_session(sys.argv[1], conf=eval(sys.argv[2]))
    result = lagom(train, {"x": Float(0, 1)}, n_trials=6, max_budget=9, driver="cluster", directory=directory,
                   name="killed", optimizer="random", progress="plain", callbacks=[kill])
    last = json.load(open(f"{directory}/killed/driver.json"))
    print("attempts:", killed[0]["attempt"], last["attempt"], last["is_over"])
    print("ended:", result.ending, sorted((trial.step, trial.losses) for trial in result.trials))
"""


@pytest.mark.long
def test_a_search_outlives_the_executor_of_its_driver(cluster_script: RunScript, tmp_path: Path) -> None:
    done = cluster_script(KILLED, tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempts: 0 1 True" in done.stdout
    assert f"ended: completed {[(9, 0)] * 6}" in done.stdout
