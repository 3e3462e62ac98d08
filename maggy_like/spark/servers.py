"""Spark's own servers on one machine, started from the pip package: a standalone cluster and a Spark Connect server."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from maggy_like.argument_checks import whole
from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark.resources import megabytes
from maggy_like.spark.session import LONG_TASK_DEFAULTS, active_session, ensure_java, masters_of

START_TIMEOUT_S = 120.0
"""Seconds within which a process must be ready: it takes eight on an idle machine, several times that on a busy one."""


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options that halve the CPU time of a JVM's start: simple compilation, and garbage collection in one thread."""


def spark_environment(directory: Path) -> dict[str, str]:
    """Return the environment of Spark's programs, which leave their files in ``directory``."""
    return {
        **os.environ,
        "SPARK_HOME": os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent),
        # The machine's own settings and log levels are not meant for these processes. A directory that is not there,
        # since it is part of the class path: with files in it, a JVM could map no archive of classes.
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', QUICK_JAVA)} {files_in(directory)}",
    }


def files_in(directory: Path) -> str:
    """Return the option for Java's temporary files in ``directory``, which a killed JVM does not remove."""
    return f"-Djava.io.tmpdir={directory}"


class Daemon:
    """A process with its own process group, whose log shows when it is ready.

    It is ready when a line of the log matches the pattern ``ready``, which has one group. ``environment`` is complete.
    It ends with :meth:`kill`, and on Linux also when this process dies for any reason.
    """

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], ready: str) -> None:
        self._name = name
        self._ready: Future[str] = Future()
        self._pattern = re.compile(ready)
        self._tail: deque[str] = deque(maxlen=20)
        started: Future[subprocess.Popen[str]] = Future()
        # The death signal comes as the thread that made the process ends, not as this process does. So it is made by
        # the thread that reads its log: to the end, also after it is ready, since a full pipe would stop it.
        self._reader = threading.Thread(
            target=self._run, args=(command, environment, started), name=f"log of {self._name}", daemon=True
        )
        self._reader.start()
        self._process = started.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, deadline: float) -> str:
        """Return the first group of the pattern; ``deadline`` is a time of the monotonic clock."""
        try:
            return self._ready.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            why = f"was not ready after {START_TIMEOUT_S:.0f} s; use a machine with less load"
        except EOFError:
            why = "ended while it started"
        log = "\n".join(self._tail)
        raise EngineError(f"the Spark {self._name} {why}. Its last lines:\n{log}")

    def kill(self) -> None:
        """End the process and its group, which includes a Worker's executors."""
        if self._process.returncode is None:
            # Also where the process is dead itself: not waited for, it keeps its group's number from reuse.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _run(self, command: list[str], environment: Mapping[str, str], started: Future[subprocess.Popen[str]]) -> None:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except BaseException as error:  # the thread that made this one waits for either, and raises it
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout is not None
        for line in process.stdout:
            self._tail.append(line.rstrip())
            if not self._ready.done() and (match := self._pattern.search(line)):
                self._ready.set_result(match[1])
        if not self._ready.done():
            self._ready.set_exception(EOFError())


class Daemons:
    """Processes of Spark with one temporary directory, which end with the ``with`` block or :meth:`stop`."""

    def __init__(self, prefix: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=prefix))
        self._daemons: list[Daemon] = []

    def stop(self) -> None:
        """End all processes and remove their files; a second call does nothing."""
        # Workers before their Master: a Worker that loses its Master only writes to its log about it.
        for daemon in reversed(self._daemons):
            daemon.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_properties(self, name: str, properties: Mapping[str, str]) -> Path:
        """Write settings to a file that Spark's programs read."""
        path = self._directory / f"{name}.conf"
        path.write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
        return path


def _die_with_parent() -> Callable[[], None] | None:
    """Return what a child calls before exec so that it is killed when its parent dies (Linux only)."""
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec a child must not take the loader's lock.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_parent_death_signal = 1

    def ask_for_signal() -> None:
        prctl(set_parent_death_signal, signal.SIGKILL)

    return ask_for_signal


class StandaloneCluster(Daemons):
    """Start a standalone Spark cluster on this machine, to try one out and for tests.

    A Master and its Workers are separate processes, as on a real cluster: executors can be killed, GPUs are scheduled,
    and the driver communicates over sockets. Everything is bound to 127.0.0.1. GPUs are simulated: Spark assigns their
    addresses (``i * gpus`` and up for Worker ``i``), even if there is no such device.

    The processes end with the ``with`` block, with :meth:`stop`, and on Linux also when the process that started them
    dies for any reason.

    Args:
        workers: Number of Workers. Each runs one executor of an application.
        cores: Number of CPU cores of each Worker. Default: 1.
        memory: Memory of each Worker in Spark's notation (``"2g"``). An executor takes all of it.
        gpus: Number of simulated GPUs of each Worker. A task then takes one of them, so a Worker has ``min(cores,
            gpus)`` slots. Default: 0.
        dynamic: If True, sessions allocate executors dynamically (``spark.dynamicAllocation.enabled``): they start
            with none, and get one per Worker when tasks wait. Workers can then be decommissioned. Only jobs that
            request GPUs get some, as ``SparkEngine(resources={"gpu": 1})`` does. Set ``spark.executor.cores`` and
            ``spark.executor.memory`` to less than a Worker has, so that both kinds of executors fit.

    Attributes:
        master_url: ``spark://127.0.0.1:port``.
        conf: Settings for a session on this cluster. Its JVMs share this machine, so they start with
            ``-XX:TieredStopAtLevel=1 -XX:+UseSerialGC``, which halves the CPU time of the start. For heavy Spark SQL,
            remove ``spark.driver.extraJavaOptions`` and ``spark.executor.extraJavaOptions``.

    Raises:
        ConfigError: A number is not an integer, or too small, or the memory is not in Spark's notation.
        EngineError: There is no Java, or a process did not start. The message has the end of its log.

    Example:
        >>> with StandaloneCluster(2, gpus=1) as cluster:  # doctest: +SKIP
        ...     spark = spark_session(cluster.master_url, conf=cluster.conf)
    """

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory: str = "2g", gpus: int = 0, dynamic: bool = False
    ) -> None:
        workers, cores = whole("workers", workers, least=1), whole("cores", cores, least=1)
        gpus = whole("gpus", gpus, least=0)
        megabytes("memory", memory)
        self.conf = {
            "spark.executor.cores": str(cores),
            "spark.executor.memory": memory,
            # The Workers can reach the driver at the address that they are bound to, and at no other.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",  # it would listen on all addresses
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.executor.extraJavaOptions": QUICK_JAVA,
        }
        if gpus and not dynamic:
            self.conf["spark.executor.resource.gpu.amount"] = str(gpus)
            self.conf["spark.task.resource.gpu.amount"] = "1"
        if dynamic:
            self.conf["spark.dynamicAllocation.enabled"] = "true"
            self.conf["spark.dynamicAllocation.shuffleTracking.enabled"] = "true"
            self.conf["spark.decommission.enabled"] = "true"
        ensure_java()
        self._size = (cores, memory, gpus)
        self._worker_conf = {"spark.decommission.enabled": "true"} if dynamic else {}
        super().__init__("maggy_like-cluster-")
        self.conf["spark.executor.extraJavaOptions"] += f" {files_in(self._directory)}"
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            # Port 0 lets the system choose a free port, and the log says which: no other process can take it first.
            # Spark gives an application up after 10 executors that failed in a row: a search outlives more.
            properties = self._properties("master", {"spark.deploy.maxExecutorRetries": "-1"})
            options = ["--port", "0", "--properties-file", str(properties)]
            master = self._start("master.Master", options, ready=r"Starting Spark master at (spark://\S+)")
            self._daemons.append(master)
            self.master_url = master.wait_ready(deadline)
            for index in range(workers):
                self._daemons.append(self._launch_worker(index))
            for worker in self._daemons[1:]:
                worker.wait_ready(deadline)
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the Master, which is first, and of the Workers, in order."""
        return [daemon.pid for daemon in self._daemons]

    def kill_worker(self, index: int) -> None:
        """Kill a Worker and its executors (``kill -9``), as in a machine failure.

        Args:
            index: Number of the Worker, from 0.

        Raises:
            ConfigError: There is no Worker of this number.
        """
        self._daemons[self._place(index)].kill()

    def start_worker(self, index: int) -> None:
        """Start a killed Worker again, and wait until it is registered with the Master.

        Args:
            index: Number of the Worker, from 0.

        Raises:
            ConfigError: There is no Worker of this number.
            EngineError: It did not start. The message has the end of its log.
        """
        place = self._place(index)
        self._daemons[place].kill()
        self._daemons[place] = worker = self._launch_worker(index)
        worker.wait_ready(time.monotonic() + START_TIMEOUT_S)

    def add_worker(self) -> int:
        """Start one more Worker, and wait until it is registered with the Master.

        Returns:
            The number of the new Worker.

        Raises:
            EngineError: It did not start. The message has the end of its log.
        """
        worker = self._launch_worker(len(self._daemons) - 1)
        self._daemons.append(worker)
        worker.wait_ready(time.monotonic() + START_TIMEOUT_S)
        return len(self._daemons) - 2

    def decommission_worker(self, index: int) -> None:
        """Decommission a Worker of a dynamic cluster, as ``decommission-worker.sh`` does.

        It receives no more tasks, and its executors end after their present tasks.

        Args:
            index: Number of the Worker, from 0.

        Raises:
            ConfigError: There is no Worker of this number.
        """
        os.kill(self._daemons[self._place(index)].pid, signal.SIGPWR)

    def _place(self, index: int) -> int:
        """Return the place of a Worker among the processes, of which the Master is the first."""
        place = 1 + whole("index", index, least=0)
        if place >= len(self._daemons):
            raise ConfigError(
                f"index must be below the number of Workers, {len(self._daemons) - 1}, got {index}; use add_worker() "
                "for one more"
            )
        return place

    def _launch_worker(self, index: int) -> Daemon:
        cores, memory, gpus = self._size
        options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(self._directory / f"work{index}")]
        options += ["--properties-file", str(self._worker_properties(index, gpus)), self.master_url]
        return self._start("worker.Worker", options, ready=r"Successfully registered with master (\S+)")

    def _start(self, name: str, options: list[str], *, ready: str) -> Daemon:
        environment = spark_environment(self._directory)
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *options]
        return Daemon(name.rsplit(".", 1)[-1], command, environment, ready)

    def _worker_properties(self, index: int, gpus: int) -> Path:
        if not gpus:
            return self._properties(f"worker{index}", self._worker_conf)
        # A script for each Worker: two Workers with one script would give out the same addresses.
        addresses = [str(index * gpus + gpu) for gpu in range(gpus)]
        script = self._directory / f"gpus{index}.sh"
        script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': addresses})}'\n")
        script.chmod(0o700)
        resource = "spark.worker.resource.gpu"
        owned = {f"{resource}.amount": str(gpus), f"{resource}.discoveryScript": str(script)}
        return self._properties(f"worker{index}", self._worker_conf | owned)

    def _properties(self, name: str, properties: dict[str, str]) -> Path:
        # The REST server would listen on a fixed port, which two clusters cannot share.
        properties = {"spark.master.rest.enabled": "false", **properties}
        return self._write_properties(name, properties)


CONNECT_PATIENCE = 1.0
"""Seconds within which a running server of this machine accepts a connection."""

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
    """Start a Spark Connect server on this machine, to try Spark Connect out and for tests.

    It is a separate process, as a company's server is: it continues when a client leaves, several clients can use it,
    and it can be killed. It needs the memory of a Spark driver (``spark.driver.memory``, 1 GB by default).

    The server ends with the ``with`` block, with :meth:`stop`, and on Linux also when the process that started it dies
    for any reason.

    Args:
        master: Master that runs its tasks: ``"local[4]"``, or a cluster: ``"spark://host:7077"``,
            ``cluster.master_url``.
        host: Address of this machine at which clients reach it.
        conf: Spark settings of the server. With a :class:`StandaloneCluster`, pass ``cluster.conf``. Settings that
            suit long-running workers are set already (see :func:`spark_session`).

    Attributes:
        url: ``sc://host:port``, for ``spark_session(server.url)`` or ``SparkSession.builder.remote(server.url)``.
        port: Port of the URL, chosen by the operating system.

    Raises:
        ConfigError: The master is not valid.
        EngineError: There is no Java, or the server did not start. The message has the end of its log.

    Example:
        >>> with ConnectServer("local[4]") as server:  # doctest: +SKIP
        ...     spark = spark_session(server.url)
    """

    def __init__(
        self, master: str = "local[2]", *, host: str = "127.0.0.1", conf: Mapping[str, str] | None = None
    ) -> None:
        if master.startswith("sc://"):
            raise ConfigError(
                f"master must be local or a cluster, got {master!r}, a Spark Connect server; use "
                f"spark_session({master!r})"
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
        """Stop this process's session on it, end the server and remove its files. A second call does nothing.

        An open session would keep calling the stopped server, and delay the exit of its program.
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
        logging = self._directory / "log4j2.properties"  # among settings it would keep Java from its archives
        logging.write_text(_LOGGING)
        environment = spark_environment(self._directory)
        options = f"{environment.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.configurationFile={logging.as_uri()}"
        environment["SPARK_SUBMIT_OPTS"] = f"{options.lstrip()} {files_in(self._directory)}"
        environment.setdefault("PYSPARK_PYTHON", sys.executable)  # of the tasks, where they run on this machine
        environment.pop("SPARK_REMOTE", None)  # a client's, which a server must not have
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--class", _CLASS]
        command += ["--properties-file", str(properties), "spark-internal"]
        return Daemon("Connect server", command, environment, r"Spark Connect server started at: \S+:(\d+)$")

    def _properties(self, master: str, host: str, conf: Mapping[str, str]) -> Path:
        settings = {
            **LONG_TASK_DEFAULTS,
            "spark.ui.enabled": "false",  # it would listen on all addresses
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            **conf,
            "spark.master": master,
            "spark.connect.grpc.binding.address": host,
            # The system chooses a free port, and the log says which: no other process can take it first.
            "spark.connect.grpc.binding.port": "0",
        }
        return self._write_properties("server", settings)
