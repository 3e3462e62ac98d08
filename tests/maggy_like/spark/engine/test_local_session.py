"""Searches on a local master: what a cluster's users see of them, who may cancel them, and sessions that end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from script_process import ScriptProcess

from maggy_like.spark.connection import SESSION_STOPPED
from maggy_like.spark.session import ON_WORKER

pytestmark = pytest.mark.spark

SESSION = """
import os
from maggy_like import spark_session
from warm_daemon_of_spark_workers import CONF
# What a Java process that is killed leaves behind is in the directory of its script.
FILES = {"spark.local.dir": os.getcwd(), "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={os.getcwd()}"}
spark = spark_session("local[2]", conf={"spark.ui.enabled": "true", "spark.ui.port": "0", **CONF, **FILES})
sc = spark.sparkContext
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptProcess]:
    """One Java process for all scripts of this file."""
    process = ScriptProcess(tmp_path_factory.mktemp("local"))
    yield process
    process.close()


IN_THE_UI = """
import json, time, urllib.request
from maggy_like import Float, SparkEngine, lagom

def train(x, reporter):
    reporter.report(score=x, step=1)

common = {"optimizer": "random", "n_trials": 4, "max_budget": 2, "directory": "runs", "workers": 2, "progress": False}
lagom(train, {"x": Float(0, 1)}, name="august", **common)
lagom(train, {"x": Float(0, 1)}, name="september", engine=SparkEngine(barrier=False), **common)
sc.setJobGroup("cell 7", "what the notebook runs")
sc.addJobTag("nightly")
lagom(train, {"x": Float(0, 1)}, name="october", train_best=2, **common)
asked = []

def ask_beside(event):  # on the other slot, while the gang's job goes on
    if not asked:
        asked.append(sc.parallelize([1], 1).collect())

lagom(train, {"x": Float(0, 1)}, name="november", block=False, **common).result()
lagom(train, {"x": Float(0, 1)}, name="december", callbacks=[ask_beside], **common | {"workers": 1})
assert asked == [[1]]
assert sc.getLocalProperty("spark.jobGroup.id") == "cell 7"
assert sc.getLocalProperty("spark.job.description") == "what the notebook runs"
assert set(sc.getJobTags()) == {"nightly"}
sc._jsc.sc().listenerBus().waitUntilEmpty(60_000)
jobs = urllib.request.urlopen(f"{sc.uiWebUrl}/api/v1/applications/{sc.applicationId}/jobs").read()
print("JOBS", jobs.decode().replace("\\n", " "))
sc.clearJobTags()
"""


def test_a_search_is_a_job_with_a_name_and_a_group_that_succeeded(process: ScriptProcess, tmp_path: Path) -> None:
    done = process.run(SESSION + IN_THE_UI, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("JOBS "))
    names = (
        "maggy_like august:",
        "maggy_like september:",
        "maggy_like october:",
        "maggy_like november:",
        "maggy_like december:",
    )
    jobs = [job for job in json.loads(line[5:]) if job.get("description", "").startswith(names)]
    assert [job["status"] for job in jobs] == ["SUCCEEDED"] * len(jobs)
    told = {job["description"]: job["jobGroup"] for job in jobs}
    assert told == {
        "maggy_like august: search of 4 trials, 2 workers, incarnation 0": "maggy_like-august",
        "maggy_like september: search of 4 trials, 1 worker, incarnation 0": "maggy_like-september",
        "maggy_like october: search of 4 trials, 2 workers, incarnation 0": "cell 7",
        "maggy_like november: search of 4 trials, 2 workers, incarnation 0": "cell 7",  # in a thread of its own
        "maggy_like december: search of 4 trials, 1 worker, incarnation 0": "cell 7",
    }
    assert {job["name"] + ":" for job in jobs} == set(names)
    (beside,) = (job for job in json.loads(line[5:]) if job not in jobs)
    assert beside["name"].startswith("collect at "), beside  # the caller's own, during a search too
    tags = {tag for job in jobs for tag in job["jobTags"]}
    assert {"maggy_like-august", "maggy_like-october", "nightly"} <= tags
    in_background = next(job for job in jobs if "november" in job["description"])
    assert "nightly" in in_background["jobTags"]


KILLED_AGENT = """
import os
from maggy_like import Float, lagom
from maggy_like.errors import MaggyError

def train(x, reporter):
    import psutil
    from pathlib import Path
    reporter.report(score=x, step=1)
    mark = Path(MARK)
    if not mark.exists():
        mark.touch()
        psutil.Process().parent().parent().kill()  # the agent: the Python process of a Spark task
        while True:
            reporter.report(score=x, step=2)
    return x

MARK = os.path.abspath("killed")
found = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=2, max_budget=2, directory="runs", name="june",
              workers=2, progress="plain")
print("ENDED", found.ending)

def small(x):
    return x

def in_a_task(batches):
    import pandas
    for batch in batches:
        for engine in ("auto", "local"):
            try:
                result = lagom(small, {"x": Float(0, 1)}, optimizer="random", n_trials=1, workers=1, engine=engine,
                               directory=os.path.join(HERE, "inner"), progress=False)
                said = result.ending
            except MaggyError as error:
                said = str(error)
            yield pandas.DataFrame({"said": [engine + ": " + said]})

HERE = os.getcwd()
for row in spark.range(1).coalesce(1).mapInPandas(in_a_task, "said string").collect():
    print("SAID", row["said"])
"""


@pytest.mark.long
def test_people_read_lines_of_ours_and_no_page_of_java(process: ScriptProcess, tmp_path: Path) -> None:
    done = process.run(SESSION + KILLED_AGENT, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ENDED completed" in done.stdout
    fell = [line for line in done.stdout.splitlines() if "were lost together" in line]
    log = tmp_path / "runs" / "june" / "workers" / "spark.log"
    assert len(fell) == 1, done.stdout
    assert fell[0].startswith("workers 0, 1 were lost together, and restart: ")
    assert fell[0].endswith("workers/spark.log)")
    assert "\tat org.apache.spark" in log.read_text()
    seen = done.stdout + done.stderr
    assert "\tat " not in seen, seen
    assert "py4j" not in seen
    assert "collectToPython" not in seen
    said = [line.removeprefix("SAID ") for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert said[0].startswith("auto: engine='auto' cannot search inside a Spark task")
    assert said[1:] == ["local: completed"]


CANCELLED = """
import json, re, threading, time, urllib.parse, urllib.request
import maggy_like, maggy_like.errors
from maggy_like import Float, SparkEngine, lagom
from optimizers.core.events import Measured

sc.setJobGroup("cell 7", "what the notebook runs")

def train(x, reporter):
    for step in range(1, reporter.budget + 1):
        reporter.report(score=x, step=step)
        time.sleep(0.02)

def click(tab, what):  # as a browser does
    page = urllib.request.urlopen(f"{sc.uiWebUrl}/{tab}/").read().decode()
    form = re.search(rf'/{tab}/{what}/kill/".*?name="id" value="(\\d+)".*?name="csrfToken" value="(\\w+)"', page, re.S)
    data = urllib.parse.urlencode({"id": form[1], "csrfToken": form[2]}).encode()
    urllib.request.urlopen(f"{sc.uiWebUrl}/{tab}/{what}/kill/", data=data).read()

stopping = threading.Thread(target=spark.stop)

def stop_session():
    stopping.start()

def search(how, call=lagom, **options):
    at = []
    def on_event(event):
        if isinstance(event, Measured) and not at:
            at.append(time.monotonic())
            how()
    common = {"directory": "runs", "name": how.__name__, "workers": 2, "progress": "plain", "callbacks": [on_event]}
    try:
        if call is maggy_like.run:
            call(train, {"x": 0.5}, budget=100_000, **common)
        found = call(train, {"x": Float(0, 1)}, optimizer="random", n_trials=4, max_budget=100_000, **common, **options)
        told = {"ending": found.ending, "lost": [trial.losses + trial.stage_losses for trial in found.trials],
                "states": [trial.state.value for trial in found.trials], "training": found.training is not None}
    except maggy_like.errors.MaggyError as error:
        told = {"error": str(error)}
    print("TOLD", json.dumps({"how": how.__name__, "seconds": time.monotonic() - at[0], **told}), flush=True)

def cell_cancel():
    sc.cancelJobGroup("cell 7")

def all_jobs():
    sc.cancelAllJobs()

def kill_job():
    click("jobs", "job")

def kill_stage():
    click("stages", "stage")

def tag():
    sc.cancelJobsWithTag("mine")

sc.addJobTag("mine")
search(all_jobs, train_best=5)
search(cell_cancel, engine=SparkEngine(barrier=False))
search(kill_job)
search(kill_stage)
search(tag, call=maggy_like.run)
search(stop_session)
stopping.join()  # the next script makes a session of its own
"""


def test_each_way_to_cancel_a_search_ends_it_with_what_it_has(process: ScriptProcess, tmp_path: Path) -> None:
    done = process.run(SESSION + CANCELLED, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = {said["how"]: said for line in done.stdout.splitlines() if line.startswith("TOLD ")
            for said in [json.loads(line[5:])]}  # fmt: skip
    assert list(told) == ["all_jobs", "cell_cancel", "kill_job", "kill_stage", "tag", "stop_session"]
    lines = [line for line in done.stdout.splitlines() if line.startswith("stopped from outside: ")]
    for said, line, why in zip(
        told.values(), lines, ["all jobs", "'cell 7'", "Web UI", "Web UI", "'mine'", SESSION_STOPPED], strict=True
    ):
        assert why in line
        assert said["seconds"] < 100  # it would wait for slots for two minutes; at most five is for test_platforms
        if said["how"] == "tag":
            assert "was cancelled (job " in said["error"]
            continue
        assert said["ending"] == "cancelled"
        assert not any(said["lost"])
        assert set(said["states"]) == {"pending"}
        assert not said["training"]
    assert "lost" not in done.stdout.replace('"lost"', "")


STOPPED = """
import maggy_like
from maggy_like import Float, SparkEngine, lagom
from maggy_like.errors import EngineError
from maggy_like.spark.session import active_session

def train(x):
    return x

def stop_java():  # as a cluster does that ends the application
    spark.sparkContext._jsc.sc().stop()

def stop_context():
    spark.sparkContext.stop()

search = {"n_trials": 1, "optimizer": "random", "workers": 1, "directory": "runs", "direction": "max",
          "progress": False}
found = lagom(train, {"x": Float(0, 1)}, **search)
for stop in (stop_java, stop_context):
    before, engine = spark, SparkEngine(spark)
    stop()
    try:
        lagom(train, {"x": Float(0, 1)}, engine=engine, **search)
    except EngineError as error:
        print("SAID", error)
    print("ACTIVE", active_session())
    spark = spark_session("local[2]", conf=CONF)
    print("ANOTHER", spark is not before, spark.range(3).count())
print("ENDED", lagom(train, {"x": Float(0, 1)}, **search).ending)

def train_with_session():
    from maggy_like import spark_session
    try:
        spark_session()
    except EngineError as error:
        return str(error)

print("IN A TRIAL", maggy_like.run(train_with_session, workers=1, directory="runs", progress=False))
print("TRAINED", found.train(workers=1, progress=False).trial.state.value)  # in a session that the search did not have
"""


@pytest.mark.long
def test_after_a_stopped_session_there_is_none_until_another_one_is_made(
    process: ScriptProcess, tmp_path: Path
) -> None:
    done = process.run(SESSION + STOPPED, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    words = ("SAID", "ACTIVE", "ANOTHER", "ENDED", "IN A TRIAL", "TRAINED")
    said = [line for line in done.stdout.splitlines() if line.startswith(words)]
    told = f"SAID {SESSION_STOPPED}; create a new one with maggy_like.spark_session()"
    assert said == [told, "ACTIVE None", "ANOTHER True 3"] * 2 + [
        "ENDED completed",
        f"IN A TRIAL {ON_WORKER}",
        "TRAINED completed",
    ]


A_SESSION_OF_THEIR_OWN = """
import os, sys, time
from pathlib import Path
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from maggy_like import Float, lagom

if SparkSession.getActiveSession() is not None:
    SparkSession.getActiveSession().stop()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
context = spark.sparkContext._jsc.sc()

def train(x):
    time.sleep(1.5)  # Spark draws after half a second
    return x

def bar():
    return context.progressBar().isDefined()

seen = [bar()]
lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=2, directory=Path("runs"), progress="plain",
      callbacks=[lambda event: seen.append(bar())])
print(seen[0], any(seen[1:]), bar())
spark.stop()
"""


@pytest.mark.long
def test_a_session_of_their_own_draws_no_bar_into_our_lines_and_has_it_back(
    process: ScriptProcess, tmp_path: Path
) -> None:
    done = process.run(A_SESSION_OF_THEIR_OWN, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True False True"
    assert "[Stage" not in done.stderr


JAVA_GONE = """
import os, signal, time
from pathlib import Path
from maggy_like import Float, lagom
from maggy_like.errors import EngineError
from optimizers.core.events import Measured

java = spark.sparkContext._gateway.proc.pid
killed = []

def train(x, reporter):
    for step in range(1, reporter.budget + 1):
        reporter.report(score=x, step=step)
        time.sleep(0.05)

def on_event(event):
    if isinstance(event, Measured) and not killed:
        killed.append(time.monotonic())
        os.kill(java, signal.SIGKILL)

try:
    lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=4, max_budget=100_000, directory=Path("runs"),
          progress="plain", callbacks=[on_event])
except EngineError as error:
    print(error)
    print("seconds", time.monotonic() - killed[0])
    print("trials", len(error.result.trials))
"""


def test_a_java_process_that_is_killed_ends_the_search_at_once_and_is_named(
    process: ScriptProcess, tmp_path: Path
) -> None:
    done = process.run(SESSION + JAVA_GONE, directory=tmp_path)
    process.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the Spark application's Java process (pid " in done.stdout
    assert "is gone: killed by SIGKILL" in done.stdout
    assert "Connection refused" not in done.stdout
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("seconds ", "trials ")))
    assert float(said["seconds"]) < 100  # it would wait for slots for two minutes
    assert int(said["trials"]) >= 1


SHARE = """
import os
from maggy_like import Float, lagom

def train(x):
    import joblib
    openmp = int(os.environ["OMP_NUM_THREADS"])
    assert os.environ["KERAS_BACKEND"] == "torch"
    return {"value": x, "os": os.cpu_count(), "joblib": joblib.cpu_count(), "openmp": openmp}

os.environ["OMP_NUM_THREADS"] = "3"  # the user's own
os.environ["KERAS_BACKEND"] = "torch"
common = {"optimizer": "random", "metric": "value", "direction": "max", "directory": "runs", "progress": False}
result = lagom(train, {"x": Float(0, 1)}, n_trials=2, workers=2, **common)
print("SEEN", [{name: int(trial.metrics[name]) for name in ("os", "joblib", "openmp")} for trial in result.trials])
"""


@pytest.mark.long
def test_a_trial_sees_the_cores_of_its_task_and_variables_of_libraries(process: ScriptProcess, tmp_path: Path) -> None:
    done = process.run(SESSION + SHARE, directory=tmp_path)
    assert f"SEEN {[{'os': 1, 'joblib': 1, 'openmp': 3}] * 2}" in done.stdout, done.stderr
