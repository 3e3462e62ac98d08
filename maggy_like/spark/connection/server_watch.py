"""Notices that a Spark Connect server is gone, while pyspark goes on asking it for ten minutes."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from maggy_like.errors import EngineError
from maggy_like.spark.connection.connect import ServerSilent, ping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL = 2.0
"""Seconds between two questions."""

REFUSED_PATIENCE = 10.0
"""Seconds after which a server counts as gone whose host refuses connections: its process is not there."""

SILENT_PATIENCE = 60.0
"""Seconds after which a server counts as gone that says nothing: as many as a worker waits for its driver."""


class ServerWatch:
    """Pings a session's server while jobs of the session run.

    Jobs that run at the same time share one thread. A server that was given up may answer again later, so a job that
    begins after that is watched anew, whatever became of the jobs before it.

    Args:
        session: Of Spark Connect.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._current: Watch | None = None

    def begin(self) -> Watch:
        """Watch the server for one more job; the caller calls :meth:`Watch.end` once the job has ended."""
        with self._lock:
            if self._current is None or not self._current.add_job():
                self._current = Watch(self._session)
            return self._current


class Watch:
    """One thread that pings a server until its last job has ended, or the server counts as gone.

    Args:
        session: Of Spark Connect.

    Attributes:
        gone: Why the server counts as gone; empty while it does not.
    """

    def __init__(self, session: SparkSession) -> None:
        self.gone = ""
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
        """Note that a job has ended."""
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
