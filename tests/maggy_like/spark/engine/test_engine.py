"""The gang as one barrier stage, on every kind of master."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import train_functions as fns
from gate import Gate

from maggy_like import Float, SparkEngine, lagom
from maggy_like.errors import EngineError
from maggy_like.spark.engine.job import SparkRun, cause_of
from optimizers.core.events import AttemptStarted, Event
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from maggy_like import StandaloneCluster

pytestmark = pytest.mark.spark

SPACE = {"x": Float(0, 1)}

SUPPORT = Path(fns.__file__).parent

TESTS = {"PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, SUPPORT.parents[1])))}

ON_A_MASTER = """
import sys, os, time
from pathlib import Path
from gate import Gate
from maggy_like import Float, SparkEngine, lagom, spark_session
from optimizers.core.events import AttemptStarted
from optimizers.schedulers.asha import ASHA

def train(gate, x, reporter):
    open(gate, "rb").close()
    start = (reporter.restore() or 0) + 1
    for step in range(start, reporter.budget + 1):
        reporter.checkpoint(step)
        gpu = int(os.environ.get("CUDA_VISIBLE_DEVICES", "-1"))
        reporter.report(score=x * step, gpu=gpu, pid=os.getpid(), step=step)

if __name__ == "__main__":
    master, conf, directory = sys.argv[1], eval(sys.argv[2]), sys.argv[3]
    gate, workers = Gate(Path("gate")), set()

    def on_event(event):
        if isinstance(event, AttemptStarted):
            workers.add(event.worker)
            if len(workers) == 2:
                gate.open()

    space = {"gate": os.path.abspath(gate.path), "x": Float(0, 1)}
    spark = spark_session(master, conf=conf)
    while SparkEngine(spark).slots() < 2:  # executors register one by one
        time.sleep(0.1)
    result = lagom(train, space, n_trials=9, optimizer=ASHA(min_budget=1), max_budget=9, directory=directory,
                   metric="score", progress="plain", callbacks=[on_event])
    print("counts", sorted((state.value, count) for state, count in result.counts.items()))
    print("gpus", sorted({int(trial.curves["gpu"].values[-1]) for trial in result.trials}))
    print("workers", len({trial.worker for trial in result.trials}))
    print("processes", len({trial.curves["pid"].values[-1] for trial in result.trials}))
"""


def test_local_master_runs_the_search_in_its_tasks(spark_local: SparkSession, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    workers: set[int] = set()

    def open_when_both_are_there(event: Event) -> None:
        if isinstance(event, AttemptStarted):
            workers.add(event.worker)
            if len(workers) == 2:
                gate.open()

    result = lagom(fns.climb_on_past_gate, {"gate": gate.path, **SPACE}, n_trials=9,
                   optimizer=ASHA(min_budget=1), max_budget=9, directory=tmp_path, progress=False,
                   callbacks=[open_when_both_are_there, "tensorboard"])  # fmt: skip
    assert result.counts == {TrialState.PAUSED: 7, TrialState.COMPLETED: 2}
    assert len(list((result.directory / "tensorboard").iterdir())) == 9
    assert {trial.worker for trial in result.trials} == {0, 1}


def test_a_gang_larger_than_the_slots_is_refused_with_both_numbers(spark_local: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match="workers must fit in the 2 slots that the Spark session has now, got 3; use workers=2"
    ):
        lagom(fns.climb, SPACE, workers=3, directory=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_the_session_is_found_from_any_thread(spark_local: SparkSession) -> None:
    engines: list[SparkEngine] = []
    thread = threading.Thread(target=lambda: engines.append(SparkEngine()))
    thread.start()
    thread.join()
    assert engines[0].slots() == 2


def test_a_long_spark_error_is_cut_to_its_cause() -> None:
    text = """An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: Job aborted: org.apache.spark.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    import msgspec
ModuleNotFoundError: No module named 'msgspec'

\tat org.apache.spark.X(Y.scala:1)"""
    assert cause_of(text) == "ModuleNotFoundError: No module named 'msgspec'"
    assert cause_of("a\nb\nc\nd") == "a b c"


def test_each_task_gets_its_own_key(spark_local: SparkSession) -> None:
    run = SparkRun.__new__(SparkRun)
    run._keys = ((b"public-3", b"secret-3"), (b"public-5", b"secret-5"))
    run.indexes, run._session, run._profile, run._barrier = (3, 5), spark_local, None, True

    def said(rows: Iterator[Any]) -> Iterator[Any]:
        yield list(rows)

    assert run._in_tasks(said) == [[(3, b"public-3", b"secret-3")], [(5, b"public-5", b"secret-5")]]


def test_an_engine_may_be_given_its_session(spark_local: SparkSession, tmp_path: Path) -> None:
    engine = SparkEngine(spark_local)
    assert engine.slots() == 2
    result = lagom(fns.climb, SPACE, optimizer="random", n_trials=2, engine=engine, workers=1,
                   directory=tmp_path, progress=False)  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 2}


def check_search(done: Any) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counts [('completed', 2), ('paused', 7)]" in done.stdout
    assert "gpus [0, 1]" in done.stdout
    assert "workers 2" in done.stdout
    assert "processes 9" in done.stdout


@pytest.mark.long
def test_standalone_gives_each_worker_its_own_gpu_that_the_session_asks_for(
    cluster_script: Any, tmp_path: Path
) -> None:
    check_search(cluster_script(ON_A_MASTER, tmp_path / "runs"))


def test_standalone_gives_each_worker_its_own_gpu_that_the_gang_asks_for(
    free_cluster: StandaloneCluster, run_script: Any, tmp_path: Path
) -> None:
    conf = dict(free_cluster.conf)
    del conf["spark.task.resource.gpu.amount"]
    check_search(run_script(ON_A_MASTER, free_cluster.master_url, conf, tmp_path / "runs", env=TESTS))
