"""What dynamic allocation asks of a gang, told by settings alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like import SparkEngine
from maggy_like.errors import ConfigError, EngineError

YARN = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}


def engine_on(conf: dict[str, str], **options: Any) -> SparkEngine:
    session: Any = SimpleNamespace(_sc=None, conf=SimpleNamespace(get=conf.get))
    return SparkEngine(session, **options)


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
