"""Where the driver of a Spark session listens, and the address at which the session's workers reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maggy_like.errors import EngineError
from maggy_like.rpc.endpoint import Endpoint, PortRange, listens_here, resolves
from maggy_like.spark.connection.connect import address_towards, server_endpoint
from maggy_like.spark.kinds import is_classic, is_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def driver_endpoint(session: SparkSession, host: str, bind: str, ports: PortRange) -> Endpoint:
    """Return where the driver of a search listens, and the address at which its workers connect.

    Args:
        session: Says what is not given: ``spark.driver.host`` and ``spark.driver.bindAddress``.
        host: The address at which workers connect; empty for the session's setting.
        bind: What the server binds to. If empty, ``host`` where that is this machine's own, else the session's setting.
        ports: The ports that it may take.

    Raises:
        EngineError: The workers run on this machine, and ``host`` is a name that it does not know.
    """
    master = str(session.conf.get("spark.master", "")) if is_classic(session) else ""
    if host and is_local_master(master) and not resolves(host):
        raise EngineError(
            f"host={host!r} does not resolve on this machine, and the workers of the master {master!r} run here; leave "
            "host out, or pass an address of this machine"
        )
    if not bind and host and listens_here(host):
        bind = host
    return Endpoint(host or driver_address(session), bind or bind_address(session), ports)


def host_hints(host: str) -> list[str]:
    """Hints about a name that workers are given: they resolve it, and may do so where this machine cannot."""
    if not host or resolves(host):
        return []
    return [f"the name host={host!r} does not resolve on this machine: check that it does on those of the workers"]


def driver_address(session: SparkSession) -> str:
    """The name or address by which the session's executors reach this machine."""
    if is_classic(session):
        return unbracketed(session.conf.get("spark.driver.host", "127.0.0.1"))
    return address_towards(*server_endpoint(session))


def bind_address(session: SparkSession) -> str:
    """The name or address of this machine that Spark's own driver is bound to."""
    if is_classic(session):
        return unbracketed(session.conf.get("spark.driver.bindAddress", driver_address(session)))
    return driver_address(session)


def unbracketed(host: str | None) -> str:
    """A host without the brackets in which Spark wants IPv6 addresses."""
    return str(host).removeprefix("[").removesuffix("]")
