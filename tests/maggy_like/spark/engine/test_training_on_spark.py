"""Trainings by a gang of Spark tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import multi_worker_functions as fns
import pytest

import maggy_like
from maggy_like import Float, lagom
from optimizers.core.trial import TrialState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from maggy_like import StandaloneCluster

pytestmark = pytest.mark.spark

ON_A_CLUSTER = """
import sys
import maggy_like
import multi_worker_functions as fns
from maggy_like import spark_session
from optimizers.core.events import AttemptEnded

if __name__ == "__main__":
    spark = spark_session(sys.argv[1], conf=eval(sys.argv[2]))
    answers = []
    for fault in ("", "kill the executor"):
        directory, events = f"{sys.argv[3]}/{len(answers)}", []
        config = {"directory": sys.argv[3], "fault": fault, "rank": 1}
        answers.append(maggy_like.run(fns.train_together, config, workers=2, budget=10, directory=directory,
                                      progress="plain", callbacks=[events.append]))
    print("equal", answers[0] == answers[1], len(answers[0]))
    print("attempts", *[event.failure.kind if event.failure else event.state for event in events
                        if isinstance(event, AttemptEnded)])
"""


def jobs(spark: SparkSession) -> list[Any]:
    """All jobs of the session, with their stages, once the listener that knows them has heard of all."""
    context = spark.sparkContext._jsc.sc()  # type: ignore[union-attr]
    context.listenerBus().waitUntilEmpty(60_000)
    listed = context.statusStore().jobsList(None)
    return [listed.apply(index) for index in range(listed.size())]


def test_a_function_runs_on_all_tasks_of_a_stage(spark_local: SparkSession, tmp_path: Path) -> None:
    answer = maggy_like.run(fns.meet, workers=2, directory=tmp_path, progress=False)
    assert answer["sum"] == 3.0
    assert [seen["RANK"] for seen in answer["environment"]] == ["0", "1"]
    assert {seen["LOCAL_WORLD_SIZE"] for seen in answer["environment"]} == {"2"}


def test_the_training_runs_in_the_stage_of_the_search(spark_local: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    before = len(jobs(spark_local))
    result = lagom(fns.climb_together, {"directory": str(tmp_path / "seen"), "x": Float(0, 1)}, optimizer="random",
                   n_trials=3, max_budget=4, train_best=True, directory=tmp_path / "runs", progress=False)  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 3}
    assert result.training is not None
    assert (result.training.world_size, result.training.trial.step) == (2, 4)
    assert result.training.load() == {"step": 4}
    (job,) = jobs(spark_local)[: len(jobs(spark_local)) - before]
    assert job.stageIds().size() == 1


@pytest.mark.long
def test_a_training_survives_its_executor(cluster_script: Any, tmp_path: Path) -> None:
    done = cluster_script(ON_A_CLUSTER, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal True 49" in done.stdout, done.stdout
    assert "attempts stage_lost completed" in done.stdout


SHRINKING = """
import os, signal, sys
import maggy_like
import multi_worker_functions as fns
from maggy_like import FailurePolicy, spark_session
from maggy_like.driver import supervisor
from maggy_like.driver.state_machine import phases
from optimizers.core.events import AttemptStarted, Measured

if __name__ == "__main__":
    directory, worker = sys.argv[3], int(sys.argv[4])
    spark = spark_session(sys.argv[1], conf=eval(sys.argv[2]))
    patience = supervisor.SHRINK_PATIENCE, phases.PATIENCE
    sizes, killed = [], []

    def watch(event):
        if isinstance(event, AttemptStarted):
            sizes.append(event.world_size)
            # All have come: lost ones are not waited for for long.
            supervisor.SHRINK_PATIENCE, phases.PATIENCE = 3.0, 4.0
        elif isinstance(event, Measured) and not killed and event.columns["loss"][0][-1] >= 5:
            killed.append(True)
            os.killpg(worker, signal.SIGKILL)  # its executor is in its group

    config = {"directory": directory, "fault": "wait", "rank": 1}
    options = {"workers": 2, "budget": 10, "directory": directory, "progress": "plain"}
    try:
        disturbed = maggy_like.run(fns.train_together, config, failures=FailurePolicy(min_workers=1),
                                   callbacks=[watch], **options)
    finally:
        supervisor.SHRINK_PATIENCE, phases.PATIENCE = patience
    undisturbed = maggy_like.run(fns.train_together, config, engine="local", **options)
    print("world sizes", *sizes)
    differences = [abs(a - b) for a, b in zip(disturbed, undisturbed, strict=True)]
    print("differ by", max(differences))
"""


@pytest.mark.long
def test_a_gang_that_lost_a_spark_worker_for_good_goes_on_with_the_rest(
    cluster_script: Any, standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    try:
        done = cluster_script(SHRINKING, tmp_path, standalone_cluster.pids[2])
    finally:
        standalone_cluster.start_worker(1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "world sizes 2 1\n" in done.stdout, done.stdout
    assert "launched again without worker" in done.stdout
    assert float(done.stdout.split("differ by ")[1]) < 1e-5
