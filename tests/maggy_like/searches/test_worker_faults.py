"""Real workers are killed, frozen and lost: each trial ends once, and no measurement is missing or doubled."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
import train_functions as fns
from family import agents
from faults import BUDGET, ROLES, Host, Search, freeze, kill, survivors, words
from gate import Gate
from script_process import ScriptProcess

from maggy_like import FailurePolicy, Float, LocalEngine, lagom
from maggy_like.driver import supervisor as gang
from maggy_like.errors import EngineError, WorkerError
from optimizers.core.events import AttemptStarted, Event
from optimizers.core.trial import TrialState

if TYPE_CHECKING:
    from maggy_like import StandaloneCluster

pytestmark = pytest.mark.e2e

BARRIERS = [
    pytest.param(True, id="barrier"),
    pytest.param(False, id="no barrier", marks=pytest.mark.long),
]

FAULTS = {**{role: kill(role) for role in ROLES}, "frozen agent": freeze}

HEARTBEAT = 6.0
"""Seconds after which a worker that is frozen counts as lost; the others may be slow."""


@pytest.fixture(scope="module")
def local() -> Iterator[Host]:
    with Host() as host:
        yield host


@pytest.fixture(scope="module")
def local_spark() -> Iterator[Host]:
    with Host("local[2]") as host:
        yield host


@pytest.fixture(scope="module")
def standalone(standalone_cluster: StandaloneCluster, cluster_process: ScriptProcess) -> Iterator[Host]:
    cluster_process.close()  # it holds the executors
    with Host(standalone_cluster.master_url, standalone_cluster.conf, lambda: standalone_cluster.pids) as host:
        yield host


def hit(host: Host, directory: Path, fault: str, *, barrier: bool = True) -> Search:
    """Run a search through a fault, and check that its journal is complete."""
    patience = {"heartbeat": HEARTBEAT} if fault == "frozen agent" else {}
    search = host.start(directory, barrier=barrier, **patience)
    search.begin()
    search.hurt(FAULTS[fault])
    search.end()
    search.check()
    return search


@pytest.mark.parametrize("fault", ["child", "fork server", "agent", "frozen agent"])
def test_a_fault_on_this_machine_costs_one_attempt(local: Host, tmp_path: Path, fault: str) -> None:
    search = hit(local, tmp_path, fault)
    assert [end.trial for end in search.lost()] == [search.victim]


def test_a_frozen_worker_that_wakes_after_it_was_declared_lost_changes_nothing(local: Host, tmp_path: Path) -> None:
    """Its child ends meanwhile: the driver ignores its late measurements and its late end, of a past attempt."""
    search = local.start(tmp_path, heartbeat=HEARTBEAT, kills=False)
    search.begin()
    trial, _, agent, *_ = search.lineage
    agent.suspend()
    search.until(lambda: len(search.lost()) == 1)
    search.open("gate")
    search.until(lambda: (tmp_path / "pids" / f"{trial.pid}.done").exists())
    agent.resume()
    assert not survivors([agent])  # the driver refuses it, and it leaves by itself
    search.end()
    search.check()
    assert [end.trial for end in search.lost()] == [search.victim]


@pytest.mark.spark
@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("fault", ["child", "fork server", "agent"])
def test_a_fault_on_a_local_master(local_spark: Host, tmp_path: Path, fault: str, barrier: bool) -> None:
    check_losses(hit(local_spark, tmp_path, fault, barrier=barrier), fault, barrier)


@pytest.mark.spark
@pytest.mark.parametrize("barrier", BARRIERS)
def test_an_executor_is_killed(standalone: Host, tmp_path: Path, barrier: bool) -> None:
    check_losses(hit(standalone, tmp_path, "executor", barrier=barrier), "executor", barrier)


@pytest.mark.spark
def test_without_a_barrier_a_frozen_worker_is_killed_and_replaced(local_spark: Host, tmp_path: Path) -> None:
    check_losses(hit(local_spark, tmp_path, "frozen agent", barrier=False), "frozen agent", barrier=False)


@pytest.mark.spark
def test_a_frozen_worker_of_a_barrier_gang_that_wakes_joins_again(local_spark: Host, tmp_path: Path) -> None:
    """The other stands at its gate all the while, so the lost trial can only go on at the one that woke."""
    search = freeze_in_gang(local_spark, tmp_path)
    search.lineage[ROLES.index("agent")].resume()
    search.open("again")
    search.until(lambda: search.measured()[search.victim][BUDGET] > 0)
    end_alone(search)


@pytest.mark.long
@pytest.mark.spark
def test_a_frozen_worker_of_a_barrier_gang_that_never_wakes_keeps_nobody_from_the_end(
    standalone: Host, tmp_path: Path
) -> None:
    """The other runs all trials, and the frozen processes are gone after the search."""
    end_alone(freeze_in_gang(standalone, tmp_path))


def freeze_in_gang(host: Host, directory: Path) -> Search:
    """Freeze one of two workers of a barrier gang until its trial is taken from it."""
    search = host.start(directory, barrier=True, heartbeat=HEARTBEAT)
    search.begin()
    freeze(search.lineage)
    search.until(lambda: len(search.lost()) == 1)
    return search


def end_alone(search: Search) -> None:
    """Go on to the end: one worker's fault cost one attempt."""
    search.end()
    search.check()
    assert [end.trial for end in search.lost()] == [search.victim]


def check_losses(search: Search, fault: str, barrier: bool) -> None:
    """Spark ends a barrier stage as a whole; without one, or where the agent survives, a fault costs one attempt."""
    alone = not barrier or fault in ("child", "fork server")
    lost = {end.trial for end in search.lost()}
    assert len(search.lost()) == len(lost)
    assert search.victim in lost
    assert len(lost) == 1 if alone else len(lost) <= 2


@pytest.mark.long
@pytest.mark.spark
def test_with_a_barrier_the_search_waits_for_a_lost_spark_worker(
    standalone: Host, standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    search = standalone.start(tmp_path, barrier=True)
    search.begin()
    index = standalone_cluster.pids.index(search.lineage[ROLES.index("worker")].pid) - 1
    standalone_cluster.kill_worker(index)
    search.until(lambda: search.has_told("workers 0, 1: waiting for 2 slots of engine='spark', which has 1 free"))
    standalone_cluster.start_worker(index)
    search.end()
    search.check()
    search.until(lambda: search.has_told("workers 0, 1: launched again"))


@pytest.mark.long
@pytest.mark.spark
def test_without_a_barrier_the_search_goes_on_when_a_spark_worker_is_gone_for_good(
    standalone: Host, standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    search = standalone.start(tmp_path, barrier=False)
    search.begin()
    index = standalone_cluster.pids.index(search.lineage[ROLES.index("worker")].pid) - 1
    standalone_cluster.kill_worker(index)
    try:
        search.until(lambda: search.has_told("the search continues with 1 workers"))
        assert [end.trial for end in search.lost()] == [search.victim]
        search.end()
        search.check()
    finally:
        standalone_cluster.start_worker(index)


@pytest.mark.spark
def test_the_executors_end_with_a_killed_driver(standalone: Host, tmp_path: Path) -> None:
    """This test is the last on the cluster, since it ends the session."""
    standalone.start(tmp_path).begin()
    family = standalone.family()
    assert len([p for p in family if "maggy_like.worker.agent.fork_server" in words(p)]) >= 4
    standalone.process.kill()
    assert not survivors(family)


# -- when slots are missing ---------------------------------------------------------------------


class Shrinking(LocalEngine):
    """An engine that can lose slots."""

    left = 2

    def slots(self) -> int | None:
        return self.left


class Recovering(Shrinking):
    """An engine that has all its slots again after a few questions."""

    asked = 0

    def slots(self) -> int | None:
        self.asked += self.left < 2
        return 2 if self.asked > 5 else self.left


def on_start(act: Callable[[], None], workers: int) -> Callable[[Event], None]:
    """A callback that acts once, when all workers have a trial."""
    started: set[int] = set()

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted) and len(started) < workers:
            started.add(event.worker)
            if len(started) == workers:
                act()

    return on_event


def test_workers_come_back_as_soon_as_there_are_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gang, "HINT_AFTER", 0.1)
    engine = Recovering()
    gate = Gate(tmp_path / "gate")
    seen: list[AttemptStarted] = []

    def take_away() -> None:
        engine.left = 1
        agents()[0].kill()

    def open_once_it_is_back(event: Event) -> None:
        if isinstance(event, AttemptStarted):
            seen.append(event)
            if len(seen) == 3:
                gate.open()

    result = lagom(fns.wait_at_gate, {"gate": gate.path, "x": Float(0, 1)}, optimizer="random", n_trials=4, workers=2,
                   engine=engine, directory=tmp_path, progress="plain",
                   callbacks=[on_start(take_away, 2), open_once_it_is_back])  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 4}
    shown = capfd.readouterr().out
    assert "worker 0: waiting for 1 slot of engine='local', which has 0 free; the search continues with 1 work" in shown
    assert "worker 0: launched again" in shown


def test_a_search_without_any_worker_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "SLOT_PATIENCE", 0.5)
    engine = Shrinking()

    def take_away() -> None:
        engine.left = 0
        for agent in agents():
            agent.kill()

    with pytest.raises(EngineError, match=r"worker \d cannot be launched again: waited 0.5 s for 1 slot of engine='l"):
        lagom(fns.hang, {"x": Float(0, 1)}, optimizer="random", workers=2, engine=engine, directory=tmp_path,
              progress=False, callbacks=[on_start(take_away, 2)])  # fmt: skip
    assert not agents()


def test_workers_that_die_as_they_start_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 7\n")
    broken.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(broken))
    message = r"worker \d failed 3 times in a row before any was ready: its process ended with status 7; see /.*\.log"
    with pytest.raises(EngineError, match=message):
        lagom(fns.hang, {"x": Float(0, 1)}, optimizer="random", workers=2, engine="local", directory=tmp_path,
              progress=False)  # fmt: skip


def test_however_often_a_worker_is_killed_the_search_goes_on(tmp_path: Path) -> None:
    """It is killed more often in a row than launches may fail, and no trial makes any progress."""
    gate = Gate(tmp_path / "gate")
    kills = gang.MAX_FUTILE_LAUNCHES + 1

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted):
            if event.attempt > kills:
                gate.open()
            else:
                agents()[0].kill()

    result = lagom(fns.wait_at_gate, {"gate": gate.path, "x": Float(0, 1)}, optimizer="random", n_trials=1, workers=1,
                   engine="local", directory=tmp_path, progress=False, failures=FailurePolicy(kills + 1),
                   callbacks=[on_event])  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 1}
    assert result.trials[0].losses == kills


WAITS = """
import os
import threading

if os.environ["LOADED_BY"] != str(os.getpid()):  # in each worker
    threading.Event().wait()  # here

def train(x):
    return x
"""


@pytest.mark.parametrize("isolation", ["process", pytest.param("worker", marks=pytest.mark.long)])
def test_a_function_that_is_never_loaded_ends_the_search_with_the_line(
    isolation: Literal["process", "worker"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"waits_{isolation}"
    (tmp_path / f"{module}.py").write_text(WAITS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LOADED_BY", str(os.getpid()))
    train = importlib.import_module(module).train
    with pytest.raises(WorkerError, match=r"not loaded within load_timeout=10 s; it is at waits_.*:6 .*# here"):
        lagom(
            train,
            {"x": Float(0, 1)},
            workers=1,
            engine=LocalEngine(isolation=isolation),
            failures=FailurePolicy(load_timeout=10),  # in which a worker reaches the line, whatever runs beside it
            directory=tmp_path / "runs",
            progress=False,
        )
