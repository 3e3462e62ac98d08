"""A process of Spark's own programs, started from the pip package."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
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

from maggy_like.errors import EngineError

START_TIMEOUT_S = 120.0
"""Seconds that a process gets until it is ready: eight on an idle machine, several times that on a loaded one."""


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that starts with half of the CPU time: it compiles quickly and not well, and collects garbage in one thread."""


def spark_environment(folder: Path) -> dict[str, str]:
    """The environment of Spark's programs, which leave their files in ``folder``."""
    return {
        **os.environ,
        "SPARK_HOME": os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent),
        # The machine's own settings and log levels are not meant for these processes. A folder that is not there, since
        # it is part of the class path: with files in it, a JVM could map no archive of classes.
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', QUICK_JAVA)} {files_in(folder)}",
    }


def files_in(folder: Path) -> str:
    """The option by which Java makes its temporary files in ``folder``: a killed JVM does not remove them itself."""
    return f"-Djava.io.tmpdir={folder}"


class Daemon:
    """A process with a group of its own, whose log says when it is ready.

    It ends with :meth:`kill`, and on Linux also when this process dies, however it dies.

    Args:
        name: What it is, for messages.
        command: The program and its arguments.
        environment: All of its environment.
        ready: A pattern with one group; the line of the log that has it says that the process is ready.
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
        """End the process and its group (a Worker's executors are in it)."""
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
        except OSError as error:
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
    """Processes of Spark with one temporary folder, which end together: with the ``with`` block or :meth:`stop`.

    Args:
        prefix: How the folder's name begins.
    """

    def __init__(self, prefix: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._daemons: list[Daemon] = []

    def stop(self) -> None:
        """End all processes and remove their files; a second call does nothing."""
        # Workers before their Master: a Worker that loses its Master only writes to its log about it.
        for daemon in reversed(self._daemons):
            daemon.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_properties(self, name: str, properties: Mapping[str, str]) -> Path:
        """Write settings as a file that Spark's programs read."""
        path = self._folder / f"{name}.conf"
        path.write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
        return path


def _die_with_parent() -> Callable[[], None] | None:
    """Return what a child calls before exec so that it is killed when its parent dies (Linux alone)."""
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec a child must not take the loader's lock.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_parent_death_signal = 1

    def ask_for_signal() -> None:
        prctl(set_parent_death_signal, signal.SIGKILL)

    return ask_for_signal
