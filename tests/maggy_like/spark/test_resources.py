"""Resources of a worker: which are accepted, and the profile that Spark gets."""

from __future__ import annotations

from typing import Any

import pytest
from settings_of_spark import ELASTIC, RESOURCES, engine_on, session_of

from maggy_like.errors import ConfigError
from maggy_like.spark.resources import Resources, megabytes, own_executors, read_resources, shared_executors


def test_resources_are_read_as_spark_writes_them() -> None:
    assert read_resources(RESOURCES) == Resources(1, 4, 20480)
    assert read_resources({"memory": "1536M"}).memory == 1536
    assert megabytes("m", "2tb") == 2 * 1024**2
    assert [Resources(gpu).sharing for gpu in (0, 1, 4, 0.5, 0.3, 0.25)] == [1, 1, 1, 2, 3, 4]
    assert [Resources(gpu).whole_gpus for gpu in (0, 1, 4, 0.5)] == [0, 1, 4, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "must be a dict such as"),
        ("gpu", "must be a dict such as"),
        ({"gpus": 1}, "did you mean 'gpu'"),
        ({"gpu": 1.5}, "an integer, or a fraction such as 0.5, got 1.5"),
        ({"gpu": -1}, "an integer, or a fraction such as 0.5, got -1"),
        ({"gpu": True}, "got True"),
        ({"gpu": "1"}, "got '1'"),
        ({"gpu": 0}, "must have GPUs, cores or memory"),
        ({"cpu": 0}, r"resources\['cpu'\] must be an integer of at least 1, got 0"),
        ({"memory": 20}, "such as '20g' or '512m', got 20"),
        ({"memory": "20 gigs"}, "such as '20g' or '512m', got '20 gigs'"),
        ({"memory": "20"}, "must be at least 512m, got '20': 20 MB"),
        ({"gpu": 1, "vendor": ""}, "must be text, got ''"),
    ],
)
def test_other_resources_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_on(ELASTIC, resources=wrong)


def amounts(requests: Any) -> dict[str, float]:
    return {name: request.amount for name, request in requests.items()}


def test_an_executor_of_its_own_is_as_large_as_the_workers_that_share_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.is_remote", lambda: True)  # profiles without a JVM
    session = session_of({})
    whole = own_executors(session, read_resources(RESOURCES), splits_memory=False, task_cpus=1)
    assert amounts(whole.executorResources) == {"cores": 4, "memory": 20480, "gpu": 1}
    assert amounts(whole.taskResources) == {"cpus": 4, "gpu": 1}
    half = own_executors(session, Resources(0.5, memory=1024), splits_memory=False, task_cpus=2)
    assert amounts(half.executorResources) == {"cores": 4, "memory": 2048, "gpu": 1}
    assert amounts(half.taskResources) == {"cpus": 2, "gpu": 0.5}


def test_where_the_cluster_manager_bounds_python_s_memory_the_jvm_takes_little_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.sql.is_remote", lambda: True)
    session = session_of({})
    profile = own_executors(session, read_resources(RESOURCES), splits_memory=True, task_cpus=1)
    assert amounts(profile.executorResources) == {"cores": 4, "memory": 1024, "memoryOverhead": 19456, "gpu": 1}


def test_a_session_asks_for_the_same_executors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.is_remote", lambda: True)
    session, other = session_of({}), session_of({})
    first = shared_executors(session, 1, 2)
    assert shared_executors(session, 1, 2) is first
    assert shared_executors(session, 2, 2) is not first
    assert shared_executors(other, 1, 2) is not first
