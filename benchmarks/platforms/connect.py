"""Spark Connect, with its server in a process of its own."""

from __future__ import annotations

from pathlib import Path

from benchmarks.platforms.cancels import cancelled
from benchmarks.platforms.networks import client, machine, secluded, tunnel
from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.twice import session, twice
from maggy_like import ConnectServer


def served() -> Outcome:
    with ConnectServer("local[2]") as server, session(server.url) as spark:
        return twice(spark)


def from_another_machine() -> Outcome:
    """The client has an address of its own, at which workers call it back."""
    with machine() as afar, ConnectServer("local[2]", host=afar.here) as server:
        return client(afar, server.url)


def in_the_cluster() -> Outcome:
    """No worker can reach the client: the driver is a task of the application."""
    with ConnectServer("local[3]") as server, secluded() as afar, tunnel(afar, server.port) as port:
        url = Path("runs").resolve().as_uri()
        return client(afar, f"sc://127.0.0.1:{port}", folder=url, workers=2, driver="cluster")


def interrupted() -> Outcome:
    with ConnectServer("local[2]") as server, session(server.url) as spark:
        return cancelled(spark, spark.interruptAll)


SETTINGS = {
    "Spark Connect": served,
    "Connect from another machine": from_another_machine,
    'Connect, driver="cluster"': in_the_cluster,
    "Connect, interruptAll": interrupted,
}
