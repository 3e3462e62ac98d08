"""Slots that are left to others, and what is said of jobs that hold them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from settings_of_spark import session_of

from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark.engine import engine as module
from maggy_like.spark.engine.engine import (
    Diagnosis,
    RunningJob,
    SparkEngine,
    holders,
    other_jobs_hints,
    thread_hints,
)
from maggy_like.spark.slots import Slots


class FakeSession:
    """A session that is asked for nothing but its settings."""


class ClassicSession(FakeSession):
    _sc = None


class FakeSlots(Slots):
    def __init__(self, count: int | None, **conf: str) -> None:
        self.resources = None
        self._count = count
        self._conf = {"spark_master": "spark://far:7077", **conf}

    @property
    def is_local(self) -> bool:
        return self._conf["spark_master"].startswith("local[")

    def count(self) -> int | None:
        return self._count

    def wait(self, wanted: int | None) -> int | None:
        return self._count

    def conf(self, key: str, default: str) -> str:
        return self._conf.get(key.replace(".", "_"), default)


def engine(slots: int | None, **options: Any) -> SparkEngine:
    made = SparkEngine(ClassicSession(), **options)  # type: ignore[arg-type]
    made._slots = FakeSlots(slots)
    made._check_session = lambda: None  # type: ignore[method-assign]
    return made


def test_reserved_slots_are_left_to_others() -> None:
    shared = engine(4, reserve=1)
    assert (shared.slots(), shared.default_workers()) == (3, 3)
    shared.require(3)
    assert engine(1, reserve=3).slots() == 0


@pytest.mark.parametrize(
    ("slots", "reserve", "workers", "message"),
    [
        (
            4,
            1,
            4,
            "workers must fit in the 4 slots that the Spark session has now, of which reserve=1 are for others, got 4",
        ),
        (
            2,
            2,
            1,
            "workers must fit in the 2 slots that the Spark session has now, of which reserve=2 are for others, got 1",
        ),
        (
            2,
            0,
            3,
            "workers must fit in the 2 slots that the Spark session has now, got 3; use workers=2 or fewer",
        ),
    ],
)
def test_a_gang_that_would_take_reserved_slots_is_refused(slots: int, reserve: int, workers: int, message: str) -> None:
    with pytest.raises(EngineError, match=re.escape(message)):
        engine(slots, reserve=reserve).require(workers)


def test_a_reserve_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(
        EngineError,
        match=re.escape("reserve must be less than the 2 slots that the Spark session has now, got 2; use reserve=1"),
    ):
        engine(2, reserve=2).default_workers()


@pytest.mark.parametrize("reserve", [-1, True, 1.0, "1", None])
def test_nonsense_is_no_reserve(reserve: Any) -> None:
    with pytest.raises(ConfigError, match=rf"reserve must be a number of slots of at least 0, got {reserve!r}"):
        engine(2, reserve=reserve)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("host", "tcp://10.0.0.5:80", "host must be a host name or an address, without a port"),
        ("host", "0.0.0.0", "host must be an address that workers can connect to, got '0.0.0.0'"),
        ("bind", "10.0.0.5:80", "bind must be a host name or an address, without a port"),
        (
            "port",
            "20100-20000",
            "port must be a port from 1 to 65535 or a range of them, lowest first, got '20100-20000'",
        ),
        ("rank_ports", 0, "rank_ports must be a port from 1 to 65535 or a range of them, lowest first, got 0"),
    ],
)
def test_nonsense_is_no_address_and_no_port(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        engine(2, **{option: value})


def test_a_gang_that_takes_all_slots_says_so_once_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HINTED", type(module._HINTED)())
    one, other = FakeSession(), FakeSession()
    ask: Any = other_jobs_hints
    assert ask(one, FakeSlots(8), 7) == []
    [hint] = ask(one, FakeSlots(8), 8)
    assert hint.startswith("the search takes all 8 slots of the Spark session until it ends")
    assert ask(one, FakeSlots(8), 8) == []
    assert len(ask(other, FakeSlots(8), 8)) == 1


@pytest.mark.parametrize(
    "slots",
    [
        FakeSlots(2, spark_master="local[2]"),
        FakeSlots(2, spark_dynamicAllocation_enabled="true"),
        FakeSlots(1),
        FakeSlots(None),
    ],
    ids=["one user's", "it grows", "none to leave", "nobody knows"],
)
def test_where_nobody_has_to_wait_nothing_is_said(slots: FakeSlots) -> None:
    ask: Any = other_jobs_hints
    assert ask(FakeSession(), slots, 2) == []


def test_where_threads_share_what_spark_knows_of_their_jobs_a_hint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_hints(session_of({})) == []
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    [hint] = thread_hints(session_of({}))
    assert hint.startswith("with PYSPARK_PIN_THREAD=false, other jobs of this program may get")
    assert thread_hints(FakeSession()) == []  # of Spark Connect


def job(number: int, name: str, tasks: int, *tags: str, group: str = "") -> RunningJob:
    return RunningJob(number, name, group, frozenset(tags), tasks)


def test_jobs_that_hold_slots_are_named_the_largest_first() -> None:
    etl, other = job(7, "count at etl.py:12", 2), job(9, "nightly", 1, group="etl")
    assert holders([other, etl, job(10, "waits itself", 0)], 4, 2) == (
        "job 7 'count at etl.py:12' holds 2 slots, job 9 'nightly' of group 'etl' holds 1 slot"
    )
    many = [job(number, "sum", 1) for number in range(5)]
    assert holders(many, 8, 2).endswith("job 2 'sum' holds 1 slot, 2 more jobs hold others")
    assert holders([], 1, 2) == "the session has 1 slot now"
    assert holders([], 0, 2, "3 GPUs") == (
        "the cluster has started executors for 0 so far; each needs 3 GPUs free on one machine"
    )
    assert holders([], 2, 2) == holders([], None, 2) == ""


def test_tasks_that_run_and_are_not_heard_have_the_address_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    running = [job(3, "gang", 0, "maggy-1"), job(7, "count", 2)]
    monkeypatch.setattr(module, "running_jobs", lambda session: running)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    diagnosis = Diagnosis(SimpleNamespace(_sc=None))  # type: ignore[arg-type]

    def why(came: int = 0) -> str:
        return diagnosis.why({"maggy-1"}, "tcp://10.0.0.5:20000", 2, 2, came)

    assert why() == "job 7 'count' holds 2 slots"
    running[:] = [job(3, "gang", 2, "maggy-1")]
    assert why() == ""  # their Python may be importing what it needs
    now += module.MUTE_PATIENCE + 1
    assert why().startswith("2 of its tasks run, but none has reached tcp://10.0.0.5:20000: check that the workers'")
    running[:] = [job(3, "gang", 1, "maggy-1")]
    assert why().startswith("a task of it runs, but none has reached tcp://10.0.0.5:20000: ")
    assert why(came=1) == ""
    running.append(job(7, "count", 1))
    assert why(came=1) == "job 7 'count' holds 1 slot"


def test_a_connect_session_does_not_tell() -> None:
    said = Diagnosis(FakeSession()).why((), "tcp://10.0.0.5:20000", None, 2, 0)  # type: ignore[arg-type]
    assert said.startswith("Spark Connect hides the reason; if its tasks run, none has reached tcp://10.0.0.5:20000: ")
