"""What Spark's UI says of a search: its name, a group to cancel it by, and that it succeeded."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.driver.supervisor import GOODBYE_PATIENCE, Supervisor
from maggy_like.protocol.identity import WorkerId
from maggy_like.spark import session
from maggy_like.spark.engine.labels import describe, job_group

TASK: Any = SimpleNamespace(name="august", about="search of 50 trials")


def test_a_job_is_described_in_words() -> None:
    assert describe(TASK, 8, 0) == "maggy_like august: search of 50 trials, 8 workers, incarnation 0"
    one = SimpleNamespace(name="august", about="search of 50 trials, 12 done")
    assert describe(one, 1, 3) == "maggy_like august: search of 50 trials, 12 done, 1 worker, incarnation 3"  # type: ignore[arg-type]


def test_a_group_s_name_can_be_typed_and_is_a_tag_too() -> None:
    assert job_group("august") == "maggy_like-august"
    assert job_group("a, b") == "maggy_like-a__b"


def test_the_ui_is_off_for_local_masters_alone() -> None:
    assert "spark.ui.enabled" not in session.GANG_DEFAULTS
    assert session._LOCAL_DEFAULTS["spark.ui.enabled"] == "false"


class Leaving:
    """A run whose end is waited for."""

    def __init__(self, index: int) -> None:
        self.indexes, self.incarnation, self.waited, self.cancelled, self.has_come = (index,), 0, [0.0], False, True

    def wait(self, timeout: float) -> bool:
        self.waited.append(timeout)
        return self.cancelled

    def cancel(self) -> None:
        self.cancelled = True


def test_workers_that_said_goodbye_get_the_time_to_end_by_themselves() -> None:
    gang = Supervisor.__new__(Supervisor)
    said, silent = Leaving(0), Leaving(1)
    gang._runs = [said, silent]  # type: ignore[list-item]
    gang.leave({WorkerId(0, 0)}, timeout=0.0)
    assert said.waited[1] == pytest.approx(GOODBYE_PATIENCE, abs=5.0)
    assert silent.waited[1] == 0.0


SCRIPT = """
import json, time, urllib.request
from maggy_like import Float, SparkEngine, lagom, spark_session

spark = spark_session("local[2]", conf={"spark.ui.enabled": "true", "spark.ui.port": "0"})
sc = spark.sparkContext

def train(x, reporter):
    reporter.report(score=x, step=1)

common = {"optimizer": "random", "n_trials": 4, "max_budget": 2, "directory": "runs", "workers": 2, "progress": False}
lagom(train, {"x": Float(0, 1)}, name="august", **common)
lagom(train, {"x": Float(0, 1)}, name="september", engine=SparkEngine(barrier=False), **common)
sc.setJobGroup("cell 7", "what the notebook runs")
sc.addJobTag("nightly")
lagom(train, {"x": Float(0, 1)}, name="october", train_best=2, **common)
assert sc.getLocalProperty("spark.jobGroup.id") == "cell 7"
assert sc.getLocalProperty("spark.job.description") == "what the notebook runs"
assert set(sc.getJobTags()) == {"nightly"}
sc._jsc.sc().listenerBus().waitUntilEmpty(60_000)
jobs = urllib.request.urlopen(f"{sc.uiWebUrl}/api/v1/applications/{sc.applicationId}/jobs").read()
print("JOBS", jobs.decode().replace("\\n", " "))
"""


@pytest.mark.spark
def test_a_search_is_a_job_with_a_name_and_a_group_that_succeeded(run_script: Any) -> None:
    done = run_script(SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("JOBS "))
    jobs = [job for job in json.loads(line[5:]) if job["description"].startswith("maggy_like ")]
    assert [job["status"] for job in jobs] == ["SUCCEEDED"] * len(jobs)
    told = {job["description"]: job["jobGroup"] for job in jobs}
    assert told == {
        "maggy_like august: search of 4 trials, 2 workers, incarnation 0": "maggy_like-august",
        "maggy_like september: search of 4 trials, 1 worker, incarnation 0": "maggy_like-september",
        "maggy_like october: search of 4 trials, 2 workers, incarnation 0": "cell 7",
    }
    tags = {tag for job in jobs for tag in job["jobTags"]}
    assert {"maggy_like-august", "maggy_like-october", "nightly"} <= tags
