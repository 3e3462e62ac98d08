"""A search on a real cluster whose executors come, leave and die while it runs."""

from __future__ import annotations

from typing import Any

import pytest
from settings_of_spark import engine_on
from terminal import PATHS

from maggy_like.errors import ConfigError, EngineError

SCRIPT = """
import os, time
from concurrent.futures import ThreadPoolExecutor
from maggy_like import FailurePolicy, Float, SparkEngine, StandaloneCluster, lagom, run, spark_session
from maggy_like.errors import EngineError
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved
from optimizers.core.trial import TrialState
from spark_jobs import active_jobs

def train(gate, x, reporter):
    start = reporter.restore() or 0
    for step in range(start + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x, step=step)
        if os.path.exists(gate):
            return {"score": x, "start": start}
        time.sleep(0.1)

def refused(call):
    try:
        call()
    except EngineError as error:
        print("refused:", error)

class Story:
    '''What happens to the cluster, and after what.'''

    def __init__(self, cluster, gate):
        self.cluster, self.gate, self.saved, self.workers = cluster, gate, set(), set()
        self.chapter = 0
        self.hand = ThreadPoolExecutor(1)  # a Worker ends with the thread that has started it

    def turn(self, chapter, action):
        if self.chapter == chapter:
            self.chapter += 1
            self.hand.submit(action)

    def __call__(self, event):
        if isinstance(event, AttemptStarted):
            self.workers.add(event.worker)
            self.turn(0, self.cluster.add_worker)  # its only slot is taken, and the other places wait for more
        elif isinstance(event, CheckpointSaved):
            self.saved.add(event.trial)
            if len(self.saved) == 2:
                self.turn(1, self.cluster.add_worker)
                self.turn(2, lambda: self.cluster.decommission_worker(0))
        elif isinstance(event, AttemptEnded) and event.state is TrialState.PENDING:
            print("lost:", event.failure.kind)
            self.turn(3, lambda: self.cluster.kill_worker(1))
            if event.failure.kind == "node_lost":
                open(self.gate, "w").close()

if __name__ == "__main__":
    gate = os.path.abspath("gate")
    space = {"gate": gate, "x": Float(0, 1)}
    options = {"optimizer": "random", "directory": "runs", "max_budget": 100_000, "progress": "plain"}
    with StandaloneCluster(1, memory="1g", dynamic=True) as cluster:
        spark = spark_session(cluster.master_url, conf=cluster.conf | {"spark.dynamicAllocation.maxExecutors": "3"})
        refused(lambda: lagom(train, space, engine=SparkEngine(spark, barrier=True), **options))
        refused(lambda: lagom(train, space, workers_per_trial=2, **options))
        refused(lambda: lagom(train, space, train_best=True, **options))
        refused(lambda: lagom(train, space, workers=4, **options))
        refused(lambda: run(train, {"gate": gate, "x": 1.0}, workers=2, budget=1, directory="runs"))
        print("nothing started:", not os.path.exists("runs"))
        story = Story(cluster, gate)
        result = lagom(train, space, n_trials=5, failures=FailurePolicy(1), callbacks=[story], **options)
        print("jobs left:", active_jobs(spark))
        spark.stop()
    print("counts", sorted((state.value, count) for state, count in result.counts.items()))
    print("losses", sum(trial.losses for trial in result.trials))
    print("several workers", len(story.workers) > 1)
    moved = [trial for trial in result.trials if trial.attempt > 1]
    print("moved", len(moved), "from their checkpoints", all(trial.metrics["start"] > 0 for trial in moved))
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(590)
def test_a_search_grows_with_its_cluster_and_outlives_its_machines(run_script: Any) -> None:
    """No executor at first, then one more, one decommissioned, one killed; no trial has lost an attempt."""
    done = run_script(SCRIPT, timeout=580, env={"PYTHONPATH": PATHS})
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "refused: barrier must not be True while spark.dynamicAllocation.enabled=true" in said
    assert "refused: workers_per_trial=2 needs workers that start together" in said
    assert said.count("refused: a training run on all workers needs workers that start together") == 2
    assert "refused: workers must fit in the 3 slots to which the Spark session can grow" in said
    assert "nothing started: True" in said
    assert said.count("Spark has no executor yet; 3 tasks") == 1
    assert sorted(line for line in said.splitlines() if line.startswith("lost:")) == [
        "lost: node_left",
        "lost: node_lost",
    ]
    assert "counts [('completed', 5)]" in said
    assert "losses 0" in said
    assert "several workers True" in said
    assert "its Spark executor is being decommissioned; the trial continues from its checkpoint at step" in said
    assert "its Spark executor is gone (worker lost: " in said
    assert "moved 2 from their checkpoints True" in said
    assert "jobs left: 0" in said


# -- what dynamic allocation asks, told by settings alone --------------------------------------------


YARN = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("conf", "elastic"),
    [
        ({"spark.master": "yarn"}, False),
        (YARN, True),
        ({**YARN, "spark.dynamicAllocation.enabled": " True"}, True),
        ({**YARN, "spark.master": "spark://far:7077"}, True),
        ({**YARN, "spark.master": "local-cluster[2,1,1024]"}, True),
        ({**YARN, "spark.master": "local[4]"}, False),
        ({**YARN, "spark.master": "local"}, False),
    ],
)
def test_spark_allocates_executors_as_its_own_rule_says(conf: dict[str, str], elastic: bool) -> None:
    assert engine_on(conf).is_elastic is elastic


def test_a_barrier_and_what_needs_one_are_refused_on_such_a_cluster_with_the_mend() -> None:
    with pytest.raises(EngineError, match=r"SPARK-24942.*omit barrier, or .*dynamicAllocation.enabled=false"):
        engine_on(YARN, barrier=True).check_workers("")
    with pytest.raises(EngineError, match=r"^workers_per_trial=2 needs .*enabled=false, or .*barrier=False"):
        engine_on(YARN).check_workers("workers_per_trial=2")
    engine_on(YARN).check_workers("")
    engine_on(YARN, barrier=False).check_workers("workers_per_trial=2")
    engine_on({"spark.master": "yarn"}).check_workers("workers_per_trial=2")
    engine_on({"spark.master": "yarn"}, barrier=True).check_workers("workers_per_trial=2")


def test_speculation_of_single_tasks_is_refused_where_there_is_no_barrier() -> None:
    speculative = {**YARN, "spark.speculation": "true"}
    engine_on(speculative).check_workers("")  # without a time limit Spark speculates on no job of one task
    speculative["spark.speculation.task.duration.threshold"] = "1h"
    with pytest.raises(
        EngineError, match=r"threshold must not be set .* got 1h, .*second copies of workers; start the session without"
    ):
        engine_on(speculative).check_workers("")
    engine_on({**speculative, "spark.dynamicAllocation.enabled": "false"}).check_workers("")


def test_speculation_is_refused_where_the_driver_is_a_task_beside_its_workers() -> None:
    engine_on(YARN).check_cluster_driver()
    with pytest.raises(
        EngineError,
        match=r"second copies of the driver and its workers; start the session with spark.speculation=false, or",
    ):
        engine_on({**YARN, "spark.speculation": "true"}).check_cluster_driver()


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_a_barrier_is_one_of_three(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"barrier must be 'auto', True or False, got {wrong!r}"):
        engine_on(YARN, barrier=wrong)


def test_a_gang_is_attended_without_a_question_to_a_jvm_that_may_be_gone() -> None:
    conf = dict(YARN)
    engine = engine_on(conf)
    engine.attend([])
    asked: list[str] = []
    engine._session.conf.get = lambda key, default=None: asked.append(key)  # type: ignore[method-assign, assignment]
    engine.attend([])
    assert asked == []
