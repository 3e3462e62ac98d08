"""A Spark Connect session's server: where it is, and whether it answers."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from maggy_like.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DETACHED = "spark.connect.execute.manager.detachedTimeout"
"""How long a server goes on with a job that no client follows; a setting of its start."""

SESSION_TIMEOUT = "spark.connect.session.manager.defaultSessionTimeout"
"""How long it keeps a session of which no client has asked anything, and that session's jobs; -1 for ever."""

DEFAULT_PORT = 15002
"""That of a Spark Connect server whose URL names none."""

PATIENCE = 10.0
"""Seconds that a server gets for an answer before a search begins."""


class ServerSilent(ConnectionError):
    """A Spark Connect server has not answered; it may answer later.

    Attributes:
        is_refused: Whether its host refused the connection: no process listens there.
    """

    def __init__(self, message: str, is_refused: bool) -> None:
        super().__init__(message)
        self.is_refused = is_refused


def server_endpoint(session: SparkSession) -> tuple[str, int]:
    """Host and port of the server that a Spark Connect session talks to, from the client that does the talking.

    Raises:
        EngineError: The session was made with a channel builder that does not name it.
    """
    builder = session.client._builder
    try:
        # A builder of one's own need not have an endpoint. Hosts that are IPv6 addresses stand in brackets.
        parts = urlsplit(f"//{getattr(builder, 'endpoint', None) or builder.host}")
        host, port = parts.hostname, parts.port
    except Exception:  # pyspark's own base class fails with an AttributeError where it means to say that
        host = port = None
    if not host:
        raise EngineError(
            f"the {type(builder).__name__} of this Spark Connect session does not tell its server's address, so nobody "
            "knows at which address workers reach this machine; pass it: engine=SparkEngine(host=...)"
        )
    return host, port or DEFAULT_PORT


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which ``host`` is reached (no packet is sent).

    Raises:
        EngineError: The name is unknown, or there is no way there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        # IPv4 first: not every executor has IPv6.
        for family, kind, protocol, _, target in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
            except OSError as error:
                reason = error
    except OSError as error:
        reason = error
    raise EngineError(
        f"no way from this machine to the Spark Connect server's host {host!r} ({reason.strerror or reason}); pass "
        "engine=SparkEngine(host=...) with the address at which workers reach this machine"
    )


def ping(session: SparkSession, timeout: float = PATIENCE) -> None:
    """Ask the server of a Spark Connect session for nothing, once; pyspark's own calls ask on for ten minutes.

    Args:
        session: Of Spark Connect.
        timeout: Seconds that the answer may take.

    Raises:
        ServerSilent: There is no answer.
        EngineError: The server does not know the session any more, or the session was stopped here.
    """
    import grpc

    client = session.client
    if client.is_closed:
        raise EngineError("the Spark Connect session was stopped; make a new one with maggy_like.spark_session()")
    request = client._config_request_with_metadata()
    request.operation.get.SetInParent()
    try:
        client._stub.Config(request, metadata=client._builder.metadata(), timeout=timeout)
    except grpc.RpcError as error:
        details = str(error.details())
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            is_refused = "connection refused" in details.lower()
            why = "connection refused" if is_refused else f"nothing for {timeout:g} s"
            if error.code() is grpc.StatusCode.UNAVAILABLE and not is_refused:
                why = details
            raise ServerSilent(f"{server_name(session)} does not answer: {why}", is_refused) from None
        if is_unknown(details):
            raise EngineError(unknown_session(session)) from None
        raise EngineError(f"{server_name(session)} refuses: {details}") from None


def is_released(session: SparkSession) -> bool:
    """Whether the server of a Spark Connect session has let go of it: ``stop()`` asks it to before it returns."""
    try:
        ping(session)
    except ServerSilent:
        return False
    except (EngineError, ValueError):  # grpc's for a channel that another thread closes meanwhile
        return True
    return False


def check_server(session: SparkSession) -> None:
    """See that the server of a Spark Connect session answers, before anything starts.

    Raises:
        EngineError: It does not, or it does not know the session.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ping(session)
        except ServerSilent as silent:
            if time.monotonic() > deadline:
                raise EngineError(f"{silent}; see that it runs, and make a new session") from None
            time.sleep(0.2)


def is_unknown(text: str) -> bool:
    """Whether an error says that a Spark Connect server does not know a session any more."""
    return "INVALID_HANDLE.SESSION" in text or "INVALID_HANDLE.OPERATION_NOT_FOUND" in text


def unknown_session(session: SparkSession) -> str:
    """What to do about such a session, in plain words."""
    return (
        f"{server_name(session)} does not know this session any more: it was started anew, or the session was released "
        "or not used for long; call spark.stop(), and make a new one with maggy_like.spark_session()"
    )


def server_name(session: SparkSession) -> str:
    """What a message calls the server."""
    try:
        host, port = server_endpoint(session)
    except EngineError:
        return "the Spark Connect server"
    return f"the Spark Connect server at {f'[{host}]' if ':' in host else host}:{port}"


def orphan_hint(session: SparkSession) -> str:
    """For how long a search whose driver is a task outlives its client."""
    settings = (DETACHED, "5m"), (SESSION_TIMEOUT, "60m")
    limits = " and ".join(f"{key}={session.conf.get(key, default)}" for key, default in settings)
    return f"this process may go away; the Spark Connect server ends the search some time after that (it has {limits})"
