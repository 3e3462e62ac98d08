"""An archive of the classes that Spark loads: a JVM that maps it starts with half of the CPU time.

Java calls it dynamic class data sharing. A JVM that cannot use the archive (another version, other jars) loads its
classes as ever, and so do those that start before it is made.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN -Dspark.sql.shuffle.partitions=2"
)
"""The JVMs of the tests live for seconds, and their queries have a few rows.

That suits the quick compiler alone, one thread to collect garbage, queries that are interpreted, not compiled, and
shuffles of two files, not 200.
"""

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A JVM that cannot use an archive would say so in the output that tests read."""


def archive_in(directory: Path) -> Path | None:
    """Where the archive for this Java and this Spark lies in a directory; None without either."""
    java = shutil.which("java")
    if java is None:
        return None
    try:
        return directory / f"spark-{version('pyspark')}-{Path(java).resolve().stat().st_mtime_ns}.jsa"
    except PackageNotFoundError:
        return None


def use(archive: Path) -> None:
    """Have each JVM that this process and its children start map the archive, once it is there."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"{OPTIONS} -XX:SharedArchiveFile={archive} {QUIET}")


def begin(archive: Path) -> Callable[[], None]:
    """Begin to make the archive: a process runs one job of Spark, and its JVM writes what it has loaded.

    Returns:
        Ends that process and its JVM, if they are still there, and removes their files.
    """
    unfinished = archive.with_suffix(f".{os.getpid()}")
    temporary = tempfile.mkdtemp()
    maker = subprocess.Popen(
        [sys.executable, __file__, str(unfinished), str(archive)],
        env={
            **os.environ,
            "JDK_JAVA_OPTIONS": f"{OPTIONS} -Djava.io.tmpdir={temporary} -XX:ArchiveClassesAtExit={unfinished} {QUIET}",
            "TMPDIR": temporary,
            "PYSPARK_PYTHON": sys.executable,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        processes = psutil.Process(maker.pid).children(recursive=True)
        os.killpg(maker.pid, signal.SIGKILL)  # it is there until this process has waited for it
        psutil.wait_procs(processes, timeout=60)  # else a JVM that ends makes files again
        maker.wait()
        unfinished.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)

    return end


def _run_job(unfinished: Path, archive: Path) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.range(2, numPartitions=2).mapInArrow(_pass_on, "id long", barrier=True).collect()
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its standard input, and writes the archive then
    gateway.proc.wait()
    unfinished.rename(archive)


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    _run_job(Path(sys.argv[1]), Path(sys.argv[2]))
