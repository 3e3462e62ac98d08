"""A Spark cluster of real processes on one machine, started from the pip package alone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from maggy_like.errors import UserError
from maggy_like.spark.java import ensure_java
from maggy_like.spark.servers.daemon import QUICK_JAVA, START_TIMEOUT_S, Daemon, Daemons, files_in, spark_environment

__all__ = ["StandaloneCluster"]


class StandaloneCluster(Daemons):
    """A standalone Spark cluster on this machine, for trying one out and for tests.

    A Master and its Workers are processes of their own, as on a real cluster: executors can be killed, GPUs
    are scheduled, and the driver talks to them over sockets. All of it is bound to 127.0.0.1. GPUs are made
    up: Spark hands out their addresses (worker i has ``i * gpus`` and up), whether there is such a device or
    not.

    The processes end with the ``with`` block, with :meth:`stop`, and on Linux also when the process that
    started them dies, however it dies.

    Args:
        workers: The number of Workers; each runs one executor of an application.
        cores: CPU cores of each Worker.
        memory: Memory of each Worker, as Spark writes it ("2g"); an executor takes all of it.
        gpus: Made-up GPUs of each Worker. With GPUs a task takes one of them, so a Worker has
            ``min(cores, gpus)`` slots.
        dynamic: Whether sessions allocate executors dynamically (``spark.dynamicAllocation.enabled``): they start with
            none, and get one a Worker as tasks wait. Workers can be decommissioned then. GPUs are left to those who
            ask for some, as ``SparkEngine(resources={"gpu": 1})`` does; set ``spark.executor.cores`` and
            ``spark.executor.memory`` to less than a Worker has, so that there is room for both kinds of executors.

    Attributes:
        master_url: ``spark://127.0.0.1:port``.
        conf: Settings for a session on this cluster. Its JVMs share this machine, so they start with
            ``-XX:TieredStopAtLevel=1 -XX:+UseSerialGC``: in half of the CPU time. For heavy Spark SQL, leave
            ``spark.driver.extraJavaOptions`` and ``spark.executor.extraJavaOptions`` out.

    Raises:
        UserError: A number is too small.
        EngineError: There is no Java, or a process did not get ready; its last words are in the error.

    Example:
        >>> with StandaloneCluster(2, gpus=1) as cluster:  # doctest: +SKIP
        ...     spark = spark_session(cluster.master_url, conf=cluster.conf)
    """

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory: str = "2g", gpus: int = 0, dynamic: bool = False
    ) -> None:
        for name, value, least in (("workers", workers, 1), ("cores", cores, 1), ("gpus", gpus, 0)):
            if value < least:
                raise UserError(f"got {name}={value}; use {least} or more")
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
        self.conf["spark.executor.extraJavaOptions"] += f" {files_in(self._folder)}"
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
        """Process ids of the Master (first) and of the Workers, in order."""
        return [daemon.pid for daemon in self._daemons]

    def kill_worker(self, index: int) -> None:
        """Kill a Worker and its executors (``kill -9``), as when a machine fails; ``index`` counts from 0."""
        self._daemons[1 + index].kill()

    def start_worker(self, index: int) -> None:
        """Start a killed Worker again, and wait until the Master knows it.

        Raises:
            EngineError: It did not get ready; its last words are in the error.
        """
        self._daemons[1 + index].kill()
        self._daemons[1 + index] = worker = self._launch_worker(index)
        worker.wait_ready(time.monotonic() + START_TIMEOUT_S)

    def add_worker(self) -> int:
        """Start one more Worker, and wait until the Master knows it; its index.

        Raises:
            EngineError: It did not get ready; its last words are in the error.
        """
        worker = self._launch_worker(len(self._daemons) - 1)
        self._daemons.append(worker)
        worker.wait_ready(time.monotonic() + START_TIMEOUT_S)
        return len(self._daemons) - 2

    def decommission_worker(self, index: int) -> None:
        """Tell a Worker of a dynamic cluster that it is about to go, as ``decommission-worker.sh`` does.

        It gets no more tasks, and its executors end once theirs have.
        """
        os.kill(self._daemons[1 + index].pid, signal.SIGPWR)

    def _launch_worker(self, index: int) -> Daemon:
        cores, memory, gpus = self._size
        options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(self._folder / f"work{index}")]
        options += ["--properties-file", str(self._worker_properties(index, gpus)), self.master_url]
        return self._start("worker.Worker", options, ready=r"Successfully registered with master (\S+)")

    def _start(self, name: str, options: list[str], *, ready: str) -> Daemon:
        environment = spark_environment(self._folder)
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *options]
        return Daemon(name.rsplit(".", 1)[-1], command, environment, ready)

    def _worker_properties(self, index: int, gpus: int) -> Path:
        if not gpus:
            return self._properties(f"worker{index}", self._worker_conf)
        # A script for each Worker: two Workers with one script would give out the same addresses.
        addresses = [str(index * gpus + gpu) for gpu in range(gpus)]
        script = self._folder / f"gpus{index}.sh"
        script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': addresses})}'\n")
        script.chmod(0o700)
        resource = "spark.worker.resource.gpu"
        owned = {f"{resource}.amount": str(gpus), f"{resource}.discoveryScript": str(script)}
        return self._properties(f"worker{index}", self._worker_conf | owned)

    def _properties(self, name: str, properties: dict[str, str]) -> Path:
        # The REST server would listen on a fixed port, which two clusters cannot share.
        properties = {"spark.master.rest.enabled": "false", **properties}
        return self._write_properties(name, properties)
