"""A Spark Connect server in a process of its own, started from the pip package alone."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from maggy_like.errors import ConfigError
from maggy_like.spark.java import ensure_java
from maggy_like.spark.servers.daemon import START_TIMEOUT_S, Daemon, spark_environment
from maggy_like.spark.session import GANG_DEFAULTS

__all__ = ["ConnectServer"]

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


class ConnectServer:
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
        self._folder = Path(tempfile.mkdtemp(prefix="maggy_like-connect-"))
        self._daemon: Daemon | None = None
        try:
            self._daemon = self._start(self._properties(master, host, conf or {}))
            self.port = int(self._daemon.wait_ready(time.monotonic() + START_TIMEOUT_S))
        except BaseException:
            self.stop()
            raise
        self.url = f"sc://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._daemon is not None
        return self._daemon.pid

    def stop(self) -> None:
        """Kill the server, which ends what runs on it, and remove its files; a second call does nothing."""
        if self._daemon is not None:
            self._daemon.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, properties: Path) -> Daemon:
        (self._folder / "log4j2.properties").write_text(_LOGGING)
        environment = spark_environment(self._folder)
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
            # The system chooses, and the log says what it chose: nobody can take the port before.
            "spark.connect.grpc.binding.port": "0",
        }
        path = self._folder / "server.conf"
        path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        return path
