from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
    with pytest.raises(EngineError, match=r"got master='local\[3\]', .* 'local\[2\]'.* stop\(\)"):
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


def test_what_is_configured_wins(run_script: RunScript, tmp_path: Path) -> None:
    """Our settings give way to spark-defaults.conf, and that to the conf argument."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures 7\nspark.log.level WARN\n"
    )
    done = run_script(
        """
from maggy_like import spark_session
spark = spark_session(conf={"spark.log.level": "FATAL", "spark.driver.memory": "600m"})
settings = dict(spark.sparkContext.getConf().getAll())
for name in "master", "scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "log.level", "app.name":
    print(settings["spark." + name])
print(spark._jvm.Runtime.getRuntime().maxMemory() <= 600 << 20)
spark.stop()
""",
        env={"SPARK_CONF_DIR": str(conf), "SPARK_MASTER": "local[1]"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["local[1]", "7", "FATAL", "maggy_like", "True"]


@pytest.mark.usefixtures("connect_port")
def test_spark_connect(run_script: RunScript) -> None:
    pytest.importorskip("grpc")
    done = run_script(
        """
from maggy_like.errors import EngineError
from maggy_like import spark_session
spark = spark_session()
assert type(spark).__module__ == "pyspark.sql.connect.session", type(spark)
assert spark_session("local[1]") is spark_session("sc://localhost") is spark_session() is spark
assert spark.range(5).count() == 5
try:
    spark_session("sc://elsewhere:1")
except EngineError as error:
    print(error)
spark.stop()
""",
        env={"SPARK_REMOTE": "local[1]"},
    )
    assert done.returncode == 0, done.stderr
    assert "got master='sc://elsewhere:1'" in done.stdout
    assert "sc://localhost:15002" in done.stdout
