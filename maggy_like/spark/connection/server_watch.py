"""Notices that a Spark Connect server is gone, while pyspark goes on asking it for ten minutes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
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
    """Asks a session's server for nothing, again and again, while a job of the session is awaited.

    Args:
        session: Of Spark Connect.

    Attributes:
        gone: Why the server counts as gone; empty while it does not.
    """

    def __init__(self, session: SparkSession) -> None:
        self.gone = ""
        self._session = session
        self._lock = threading.Lock()
        self._jobs = 0
        self._over = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the server while the block runs; one thread does, for any number of blocks."""
        with self._lock:
            self._jobs += 1
            if self._jobs == 1:
                self.gone = ""
                self._over = over = threading.Event()
                threading.Thread(target=self._watch, args=[over], name="Spark Connect server", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._jobs -= 1
                if self._jobs == 0:
                    self._over.set()

    def _watch(self, over: threading.Event) -> None:
        answered = time.monotonic()
        while not over.wait(INTERVAL):
            try:
                ping(self._session)
            except ServerSilent as silent:
                if time.monotonic() - answered > (REFUSED_PATIENCE if silent.is_refused else SILENT_PATIENCE):
                    self._give_up(silent)
                    return
            except EngineError:  # it answers, and tells the job the same
                answered = time.monotonic()
            else:
                answered = time.monotonic()

    def _give_up(self, silent: ServerSilent) -> None:
        self.gone = str(silent)
        if silent.is_refused:
            # The session died with its server. Left open, it would keep this process for ten minutes at its exit.
            with contextlib.suppress(Exception):
                self._session.client.close()
