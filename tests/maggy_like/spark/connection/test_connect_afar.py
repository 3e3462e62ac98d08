"""Spark Connect from another machine: a client in a network of its own, whose workers must find the way back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from maggy_like import ConnectServer

pytestmark = [pytest.mark.long, pytest.mark.spark]

CLIENT = """
import os, sys
import maggy_like
from maggy_like import Float, lagom, spark_session

def train(x, reporter):
    start = reporter.restore() or 0
    for step in range(start + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x, step=step)

def meet():
    return os.environ["RANK"], os.environ["WORLD_SIZE"]

spark = spark_session(sys.argv[1])
result = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=3, max_budget=3, train_best=True,
               directory=sys.argv[2], progress="plain")
print("ending", result.ending, "trials", len(result.trials), "on", result.training.world_size)
print("again", result.train(budget=2, progress=False).world_size)
print("met", maggy_like.run(meet, workers=2, directory=sys.argv[2], progress=False))
spark.stop()
"""


def test_a_client_in_a_network_of_its_own(namespace: tuple[str, str, str], tmp_path: Path) -> None:
    """The server is bound to one end of a cable, and the client has the other: its 127.0.0.1 is not the workers'."""
    pytest.importorskip("grpc")
    import warm_daemon_of_spark_workers as warm

    name, _, here = namespace
    (tmp_path / "client.py").write_text(CLIENT)
    with warm.found():
        started = ConnectServer("local[2]", host=here, conf=warm.CONF)
    with started as server:
        command = ["ip", "netns", "exec", name, sys.executable, str(tmp_path / "client.py"), server.url, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ending completed trials 3 on 2\n" in done.stdout
    assert "again 2\n" in done.stdout
    assert "met ('0', '2')\n" in done.stdout
