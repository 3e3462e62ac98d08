"""The address at which the workers of a Spark session reach the driver."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def driver_address(session: SparkSession) -> str:
    """The address of this machine that the session's executors can reach."""
    if is_classic(session):
        return socket.gethostbyname(str(session.conf.get("spark.driver.host", "127.0.0.1")))
    remote = urlsplit(str(session.conf.get("spark.remote", "sc://localhost")))
    return local_address_towards(remote.hostname or "localhost", remote.port or 15002)


def local_address_towards(host: str, port: int) -> str:
    """The address of this machine from which ``host`` is reached (no packet is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
