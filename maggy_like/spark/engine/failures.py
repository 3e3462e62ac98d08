"""Messages about the end of a Spark job, and of the Java process behind its session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError

from maggy_like.errors import EngineError
from maggy_like.processes.address_space import TOO_LITTLE_MEMORY, too_small
from maggy_like.spark.engine.entry import UNFIT
from maggy_like.spark.kinds import is_classic, is_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANOTHER_PYTHON = (
    "make the session with maggy_like.spark_session(), or set PYSPARK_PYTHON={} before it starts (on a cluster, the "
    "path of the same Python there)"
)

# Java exits so after SIGHUP, SIGINT and SIGTERM, having stopped its SparkContext before.
_SHUT_DOWN = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))

_WORDS = (
    (re.compile(r"ExecutorLostFailure \(executor (\S+) exited [^)]*\) Reason: (.*\S)"), "Spark lost executor {}: {}"),
    (re.compile(r"Python worker exited unexpectedly"), "the Python process of a Spark task died, or was killed"),
)
"""What Spark says of the usual ends of a task, and what we do."""

_NOISE = re.compile(
    r"^(An error occurred while calling \S+ ?:? ?|: |org\.apache\.spark\.\w+: |Job aborted due to stage failure: )+"
)

EXIT_PATIENCE = 5.0
"""Seconds that a Java process which does not answer any more gets to be gone."""


def cause_of(text: str) -> str:
    """The line of a long Spark error that says why.

    A Python traceback's last; else our words for a usual end; else that of the innermost ``Caused by``; else the
    first that says something.
    """
    traceback = re.search(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", text)
    if traceback is not None:
        return traceback[1]
    for pattern, words in _WORDS:
        if (match := pattern.search(text)) is not None:
            return words.format(*match.groups())
    if causes := re.findall(r"^\s*Caused by: (.*\S)", text, re.MULTILINE):
        return str(causes[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. ", line)]
    return _NOISE.sub("", " ".join(lines[:3]))


def unfit_worker(cause: str) -> str | None:
    """What to append to the cause if it is that a worker's Python lacks something; None if it is another.

    Another launch would end in the same way. What our own function says needs no more words; the others are PySpark's,
    which has failed before ours could run.
    """
    is_import = UNFIT in cause or cause.startswith(("ModuleNotFoundError", "ImportError"))
    if is_import and any(sign in cause.lower() for sign in TOO_LITTLE_MEMORY):
        return f"; the Spark workers have too little address space, {too_small()}"
    if UNFIT in cause:
        return ""
    another = ANOTHER_PYTHON.format(sys.executable)
    if "PYTHON_VERSION_MISMATCH" in cause:
        return f"; the Spark workers run another Python: {another}"
    if is_import:
        return (
            "; the Spark workers' Python lacks it: install it there on every node, send an environment with "
            f"spark.archives (docs/shipping.md), or, where this Python is there too, {another}"
        )
    return None


class JavaEnd(NamedTuple):
    """How a session's Java process ended.

    Attributes:
        text: In words.
        was_shut_down: Whether it was asked to end, and did so in order.
    """

    text: str
    was_shut_down: bool = False


def java_end(session: SparkSession) -> JavaEnd | None:
    """How the Java process of a classic session ended; None while it answers, and of a session that was stopped."""
    context = session.sparkContext
    try:
        context._jsc.sc().isStopped()
    except (Py4JJavaError, AttributeError):  # AttributeError: stopped here; the engine says so when it launches again
        return None
    except (Py4JError, OSError):
        pass
    else:
        return None
    process = getattr(context._gateway, "proc", None)
    if process is None:  # spark-submit started it, and this process from it
        return JavaEnd("the Spark application's Java process does not answer any more")
    try:
        status = process.wait(EXIT_PATIENCE)
    except subprocess.TimeoutExpired:
        return JavaEnd(f"the Spark application's Java process (pid {process.pid}) does not answer any more")
    if status < 0:
        name = signal.Signals(-status).name
        how = f"killed by {name}" + (", as the kernel does where memory is short" if name == "SIGKILL" else "")
    else:
        how = f"exit status {status}"
    message = f"the Spark application's Java process (pid {process.pid}) is gone: {how}"
    return JavaEnd(message, status in _SHUT_DOWN)


def check_local_workers(session: SparkSession) -> None:
    """See that the workers of a local master, which run here, run a Python that PySpark can talk with.

    Raises:
        EngineError: It is of another minor version.
    """
    if is_classic(session) and is_local_master(str(session.conf.get("spark.master", ""))):
        check_python(session.sparkContext)


def check_python(context: Any) -> None:
    """See that the workers of a local master run a Python that PySpark can talk with.

    Where the user chose none, they run this interpreter from now on, and not whichever ``python3`` is on the path: what
    the driver imports, they can import too.

    Args:
        context: The ``SparkContext``. What its workers run is asked for its version unless it is this interpreter.

    Raises:
        EngineError: It is of another minor version.
    """
    if context.pythonExec == "python3" and "PYSPARK_PYTHON" not in os.environ and sys.executable:
        context.pythonExec = sys.executable
    program = context.pythonExec
    if program == sys.executable:
        return
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", ask], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return  # Spark's own error says what is wrong with it
    version, own = done.stdout.strip(), f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != own:
        raise EngineError(
            f"the Spark workers would run {program}, which is Python {version}, and this is Python {own}; PySpark "
            f"cannot mix them: {ANOTHER_PYTHON.format(sys.executable)}"
        )
