"""A Spark Connect server in a process of its own, started from the pip package alone."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from maggy_like.errors import ConfigError
from maggy_like.spark.java import ensure_java
from maggy_like.spark.servers.daemon import START_TIMEOUT_S, Daemon, Daemons, files_in, spark_environment
from maggy_like.spark.session import GANG_DEFAULTS, active_session, masters_of

__all__ = ["ConnectServer"]

CONNECT_PATIENCE = 1.0
"""Seconds in which a server of this machine that is there takes a connection."""

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

# The port that it got stands in one line of its log, which must come whatever spark.log.level the server has.
_LOGGING = f"""rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{{1}}: %m%n
logger.server.name = {_CLASS}
logger.server.level = info
"""


class ConnectServer(Daemons):
    """A Spark Connect server on this machine, for trying Spark Connect out and for tests.

    It is a process of its own, as a company's server is: it goes on when a client leaves, clients come and go, and
    it can be killed. What it needs in memory is that of any Spark driver (``spark.driver.memory``, 1 GB).

    The server ends with the ``with`` block, with :meth:`stop`, and on Linux also when the process that started it dies,
    however it dies.

    Args:
        master: Where its tasks run: ``"local[4]"``, or a cluster: ``"spark://host:7077"``, ``cluster.master_url``.
        host: The address of this machine at which clients reach it.
        conf: Spark settings of the server. With a :class:`StandaloneCluster`: ``cluster.conf``. Settings that suit a
            gang of long-running tasks are there already (see :func:`spark_session`).

    Attributes:
        url: ``sc://host:port``, for ``spark_session(server.url)`` or ``SparkSession.builder.remote(server.url)``.
        port: That of the URL; the system chose it.

    Raises:
        ConfigError: The master is no master.
        EngineError: There is no Java, or the server did not get ready; its last words are in the error.

    Example:
        >>> with ConnectServer("local[4]") as server:  # doctest: +SKIP
        ...     spark = spark_session(server.url)
    """

    def __init__(
        self, master: str = "local[2]", *, host: str = "127.0.0.1", conf: Mapping[str, str] | None = None
    ) -> None:
        if master.startswith("sc://"):
            raise ConfigError(
                f"got master={master!r}, which is a Spark Connect server already; use spark_session({master!r})"
            )
        ensure_java()
        super().__init__("maggy_like-connect-")
        self._host = host
        try:
            server = self._start(self._properties(master, host, conf or {}))
            self._daemons.append(server)
            self.port = int(server.wait_ready(time.monotonic() + START_TIMEOUT_S))
        except BaseException:
            super().stop()
            raise
        self.url = f"sc://{f'[{host}]' if ':' in host else host}:{self.port}"

    def stop(self) -> None:
        """Stop this process's session on it, end the server and remove its files; a second call does nothing.

        A session that goes on would ask a server that is gone, and hold up the end of its program.
        """
        with contextlib.suppress(Exception):  # it is gone already, or dies just now, which gRPC tells in its own ways
            socket.create_connection((self._host, self.port), CONNECT_PATIENCE).close()
            if (session := active_session()) is not None and self.url in masters_of(session):
                session.stop()
        super().stop()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._daemons[0].pid

    def _start(self, properties: Path) -> Daemon:
        logging = self._folder / "log4j2.properties"  # in a folder of settings, it would keep Java from its archives
        logging.write_text(_LOGGING)
        environment = spark_environment(self._folder)
        options = f"{environment.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.configurationFile={logging.as_uri()}"
        environment["SPARK_SUBMIT_OPTS"] = f"{options.lstrip()} {files_in(self._folder)}"
        environment.setdefault("PYSPARK_PYTHON", sys.executable)  # of the tasks, where they run on this machine
        environment.pop("SPARK_REMOTE", None)  # a client's, which a server must not have
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--class", _CLASS]
        command += ["--properties-file", str(properties), "spark-internal"]
        return Daemon("Connect server", command, environment, r"Spark Connect server started at: \S+:(\d+)$")

    def _properties(self, master: str, host: str, conf: Mapping[str, str]) -> Path:
        settings = {
            **GANG_DEFAULTS,
            "spark.ui.enabled": "false",  # it would listen on all addresses
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            **conf,
            "spark.master": master,
            "spark.connect.grpc.binding.address": host,
            # The system chooses a free port, and the log says which: no other process can take it first.
            "spark.connect.grpc.binding.port": "0",
        }
        return self._write_properties("server", settings)
