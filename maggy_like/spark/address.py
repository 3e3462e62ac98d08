"""The address at which the workers of a Spark session reach the driver."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from maggy_like.spark.connect import address_towards, server_endpoint
from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def driver_address(session: SparkSession) -> str:
    """The address of this machine that the session's executors can reach."""
    if is_classic(session):
        return socket.gethostbyname(str(session.conf.get("spark.driver.host", "127.0.0.1")))
    return address_towards(*server_endpoint(session))
