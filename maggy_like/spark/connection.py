"""How a session is connected: its kind, the driver's address for its workers, and whether a Connect server answers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark import TaskContext

from maggy_like.errors import EngineError
from maggy_like.rpc.endpoint import Endpoint, PortRange, listens_here, resolves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SESSION_STOPPED = "the Spark session was stopped"


def is_classic(session: SparkSession) -> bool:
    """Whether a session has its own JVM here (Spark Connect's has none)."""
    return hasattr(session, "_sc")


def is_local_master(master: str) -> bool:
    """Whether tasks run in the driver's own JVM, and so on this machine."""
    return re.match(r"local(\[|$)", master) is not None


def is_stopped(session: SparkSession) -> bool:
    """Whether ``stop()`` was called on a session, in this process."""
    if is_classic(session):
        return session.sparkContext._jsc is None
    return bool(session.is_stopped)  # type: ignore[attr-defined]


OF_SESSIONS = "spark.sql.", "spark.rapids."
"""Beginnings of the names of settings that each session has for itself; all others belong to the application."""


def setting(session: SparkSession, key: str, default: str) -> str:
    """Return a setting that is in force.

    ``SparkSession.builder.config(...).getOrCreate()`` also writes settings of the application into a session that
    exists already. They have no effect, but ``session.conf`` returns them.
    """
    if is_classic(session) and not key.startswith(OF_SESSIONS):
        return str(session.sparkContext._conf.get(key, default))
    return str(session.conf.get(key, default))


def is_in_task() -> bool:
    """Whether this process runs a Spark task: a function that Spark calls for rows, batches or partitions."""
    return TaskContext.get() is not None or "pyspark.worker" in sys.modules


def is_on_worker() -> bool:
    """Whether Spark has started this process or its ancestor to run tasks, so that it may be that of a trial."""
    return is_in_task() or os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER"


DETACHED = "spark.connect.execute.manager.detachedTimeout"
"""Server setting: the time for which a job without a client continues."""

SESSION_TIMEOUT = "spark.connect.session.manager.defaultSessionTimeout"
"""Server setting: the time for which an unused session and its jobs are kept; -1 for unlimited."""

DEFAULT_PORT = 15002
"""Default port of a Spark Connect server."""

PATIENCE = 10.0
"""Seconds within which a server must answer before a search begins."""


class ServerSilent(ConnectionError):
    """A Spark Connect server has not answered; it may answer later."""

    def __init__(self, message: str, is_refused: bool) -> None:
        super().__init__(message)
        self.is_refused = is_refused  # its host refused the connection: no process listens there


def server_endpoint(session: SparkSession) -> tuple[str, int]:
    """Return host and port of the server of a Spark Connect session.

    Raise EngineError if the session was created with a channel builder that does not provide them.
    """
    builder = session.client._builder
    try:
        # A custom builder need not have an endpoint. Hosts that are IPv6 addresses stand in brackets.
        parts = urlsplit(f"//{getattr(builder, 'endpoint', None) or builder.host}")
        host, port = parts.hostname, parts.port
    except Exception:  # pyspark's own base class fails with an AttributeError where it means to say that
        host = port = None
    if not host:
        raise EngineError(
            f"the address at which workers reach this machine is unknown, because the {type(builder).__name__} of this "
            "Spark Connect session hides its server's address; use engine=SparkEngine(host=...)"
        )
    return host, port or DEFAULT_PORT


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which ``host`` is reached (no packet is sent)."""
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
        f"this machine has no route to the Spark Connect server's host {host!r} ({reason.strerror or reason}); use "
        "engine=SparkEngine(host=...) with the address at which workers reach this machine"
    )


def ping(session: SparkSession, timeout: float = PATIENCE) -> None:
    """Send one empty request to a Spark Connect server, because pyspark's own calls retry for ten minutes.

    Raise ServerSilent if there is no answer within ``timeout`` seconds, and EngineError if the server no longer knows
    the session, or the session was stopped here.
    """
    import grpc

    stopped = EngineError("the Spark Connect session was stopped; create a new one with maggy_like.spark_session()")
    client = session.client
    if client.is_closed:
        raise stopped
    request = client._config_request_with_metadata()
    request.operation.get.SetInParent()
    try:
        client._stub.Config(request, metadata=client._builder.metadata(), timeout=timeout)
    except ValueError:  # another thread has closed the channel meanwhile
        raise stopped from None
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
    """Whether the server of a Spark Connect session has released it, as ``stop()`` requests."""
    try:
        ping(session)
    except ServerSilent:
        return False
    except EngineError:
        return True
    return False


def check_server(session: SparkSession) -> None:
    """Check that the server of a Spark Connect session answers and knows the session, before anything starts."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ping(session)
        except ServerSilent as silent:
            if time.monotonic() > deadline:
                raise EngineError(f"{silent}; check that it is running, and create a new session") from None
            time.sleep(0.2)


def is_unknown(text: str) -> bool:
    """Whether an error means that a Spark Connect server no longer knows a session."""
    return "INVALID_HANDLE.SESSION" in text or "INVALID_HANDLE.OPERATION_NOT_FOUND" in text


def unknown_session(session: SparkSession) -> str:
    """Return the message for such a session, with the remedy."""
    return (
        f"{server_name(session)} no longer knows this session, because the server was restarted, or the session was "
        "released or idle for too long; call spark.stop(), and create a new one with maggy_like.spark_session()"
    )


def server_name(session: SparkSession) -> str:
    """Return the name of the server for messages."""
    try:
        host, port = server_endpoint(session)
    except EngineError:
        return "the Spark Connect server"
    return f"the Spark Connect server at {f'[{host}]' if ':' in host else host}:{port}"


def orphan_hint(session: SparkSession) -> str:
    """Return a hint on how long a search with its driver in a task outlives its client."""
    settings = (DETACHED, "5m"), (SESSION_TIMEOUT, "60m")
    limits = " and ".join(f"{key}={session.conf.get(key, default)}" for key, default in settings)
    return f"this process may exit; the Spark Connect server ends the search some time after that (it has {limits})"


INTERVAL = 2.0
"""Seconds between two requests."""

REFUSED_PATIENCE = 10.0
"""Seconds after which a server counts as gone if its host refuses connections, because no process listens."""

SILENT_PATIENCE = 60.0
"""Seconds after which a silent server counts as gone, as long as a worker waits for its driver."""


class ServerWatch:
    """Pings a session's server while jobs of the session run.

    Jobs that run at the same time share one thread. A server that counted as gone may answer again later, so a job that
    begins after that is watched again.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._current: Watch | None = None

    def begin(self) -> Watch:
        """Watch the server for one more job, until the caller calls :meth:`Watch.end`."""
        with self._lock:
            if self._current is None or not self._current.add_job():
                self._current = Watch(self._session)
            return self._current


class Watch:
    """A thread that pings a server until its last job has ended, or the server counts as gone."""

    def __init__(self, session: SparkSession) -> None:
        self.gone = ""  # why the server counts as gone; empty while it does not
        self._session = session
        self._lock = threading.Lock()
        self._jobs = 1
        self._over = threading.Event()
        threading.Thread(target=self._run, name="Spark Connect server", daemon=True).start()

    def add_job(self) -> bool:
        """Watch for one more job; False if this watch is over."""
        with self._lock:
            if self.gone or not self._jobs:
                return False
            self._jobs += 1
            return True

    def end(self) -> None:
        """Record that a job has ended."""
        with self._lock:
            self._jobs -= 1
            if self._jobs == 0:
                self._over.set()

    def _run(self) -> None:
        answered = time.monotonic()
        while not self._over.wait(INTERVAL):
            try:
                ping(self._session)
            except ServerSilent as silent:
                if time.monotonic() - answered > (REFUSED_PATIENCE if silent.is_refused else SILENT_PATIENCE):
                    self._give_up(silent)
                    return
            except EngineError:  # it answers, and the job gets the same answer
                answered = time.monotonic()
            else:
                answered = time.monotonic()

    def _give_up(self, silent: ServerSilent) -> None:
        with self._lock:
            self.gone = str(silent)
        if silent.is_refused:
            # The session died with its server. Left open, it would keep this process for ten minutes at its exit.
            with contextlib.suppress(Exception):
                self._session.client.close()


def driver_endpoint(session: SparkSession, host: str, bind: str, ports: PortRange) -> Endpoint:
    """Return the address at which the driver listens, and the one to which its workers connect.

    An empty ``host`` is the session's ``spark.driver.host``. An empty ``bind`` is ``host`` if that is this machine's
    own, otherwise the session's ``spark.driver.bindAddress``. This machine must know the name ``host`` if workers run
    on it.
    """
    master = setting(session, "spark.master", "") if is_classic(session) else ""
    if host and is_local_master(master) and not resolves(host):
        raise EngineError(
            f"host must resolve on this machine, which runs the workers of the master {master!r}, got {host!r}; omit "
            "it, or use an address of this machine"
        )
    if not bind and host and listens_here(host):
        bind = host
    return Endpoint(host or driver_address(session), bind or bind_address(session), ports)


def host_hints(host: str) -> list[str]:
    """Return hints about a name for workers, who resolve it and may succeed where this machine fails."""
    if not host or resolves(host):
        return []
    return [f"the name host={host!r} does not resolve on this machine; check that it does on the workers' machines"]


def driver_address(session: SparkSession) -> str:
    """Return the name or address by which the session's executors reach this machine."""
    if is_classic(session):
        return unbracketed(setting(session, "spark.driver.host", "127.0.0.1"))
    return address_towards(*server_endpoint(session))


def bind_address(session: SparkSession) -> str:
    """Return the name or address of this machine that Spark's own driver is bound to."""
    if is_classic(session):
        return unbracketed(setting(session, "spark.driver.bindAddress", driver_address(session)))
    return driver_address(session)


def unbracketed(host: str) -> str:
    """Remove the brackets in which Spark expects IPv6 addresses."""
    return host.removeprefix("[").removesuffix("]")
