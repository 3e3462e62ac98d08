"""A training that goes on with fewer workers, where an engine has lost slots for good."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import multi_worker_functions as fns
import pytest
from family import family
from gate import Gate

import maggy_like
from maggy_like import FailurePolicy, LocalEngine
from maggy_like.driver import supervisor as gang
from maggy_like.driver.state_machine import phases
from maggy_like.driver.supervisor import Supervisor
from maggy_like.engines.base import EngineRun
from maggy_like.protocol.task import KeyPair, WorkerTask
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event

pytestmark = pytest.mark.e2e

BUDGET = 10


class Shrinking(LocalEngine):
    """An engine with two slots, of which one is gone once the fault has happened.

    Args:
        directory: Where the fault leaves its mark.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(gpus=())
        self._mark = directory / "failed"

    def slots(self) -> int | None:
        return 1 if self._mark.exists() else 2


class Stage(EngineRun):
    """Workers that fall together."""

    def __init__(self, runs: Sequence[EngineRun]) -> None:
        super().__init__([index for run in runs for index in run.indexes], runs[0].incarnation)
        self._runs = runs

    def poll(self) -> str | None:
        reasons = [reason for run in self._runs if (reason := run.poll()) is not None]
        if not reasons:
            return None
        self.cancel()
        self.wait(10)
        return next(filter(None, reasons), "")

    def cancel(self) -> None:
        for run in self._runs:
            run.cancel()

    def wait(self, timeout: float) -> bool:
        return sum(run.wait(timeout) for run in self._runs) == len(self._runs)


class Barrier(Shrinking):
    """The same with gangs that fall as a whole."""

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        return [Stage(super().launch(task, indexes, incarnation, keys, logs))]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Event], None]]:
    """A callback: once all workers have begun, lost ones are not waited for for long. Nothing may be left behind.

    The training waits until the reader knows of them all the same: it could be over before.
    """
    put_off = Supervisor._put_off

    def put_off_then_go_on(*args: Any) -> None:
        put_off(*args)
        monkeypatch.setattr(phases, "PATIENCE", 0.3)

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.world_size == 2:
            monkeypatch.setattr(gang, "SHRINK_PATIENCE", 0.3)
            monkeypatch.setattr(gang, "HINT_AFTER", -1.0)
            monkeypatch.setattr(Supervisor, "_put_off", put_off_then_go_on)

    before = {process.pid for process in family()}
    yield on_event
    assert not [p for p in family() if p.pid not in before]


@pytest.mark.parametrize(("engine", "told"), [
    (Shrinking, "worker 1: waiting for 1 slot of engine='local', which has 0 free"),
    pytest.param(Barrier, "worker 0: launched again without worker 1; min_workers=1", marks=pytest.mark.long),
])  # fmt: skip
def test_a_training_goes_on_with_fewer_workers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], impatient: Any, engine: type[Shrinking], told: str
) -> None:
    events: list[Event] = []
    gate = Gate(tmp_path / "saved")

    def open_when_saved(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.step == BUDGET // 2:
            gate.open()

    config = {"directory": str(tmp_path), "rank": 1}
    options = {"budget": BUDGET, "workers": 2, "directory": tmp_path / "runs", "progress": "plain"}
    undisturbed = maggy_like.run(fns.train_together, {**config, "fault": ""}, engine="local", **options)
    weights = maggy_like.run(
        fns.train_together, {**config, "fault": "kill the agent"}, failures=FailurePolicy(min_workers=1), name="hit",
        engine=engine(tmp_path), callbacks=[impatient, open_when_saved, events.append], **options,
    )  # fmt: skip
    assert weights == pytest.approx(undisturbed, abs=1e-6)
    assert [event.world_size for event in events if isinstance(event, AttemptStarted)] == [2, 1]
    assert len([event for event in events if isinstance(event, AttemptEnded)]) == 2
    shown = capfd.readouterr().out
    assert told in shown
    again = (tmp_path / "runs" / "hit" / "logs" / "00000.log").read_text().splitlines()[-1]
    assert again == f"from step {BUDGET // 2} on 1"


@pytest.mark.long
def test_code_for_torchrun_goes_on_alone(tmp_path: Path, impatient: Any) -> None:
    """What joins a process group finds torchrun's environment also where it is the only rank left."""
    directory = str(tmp_path)

    def meet_again() -> float:
        total = fns.meet()["sum"]
        if os.environ["RANK"] == "1":
            fns.fail_once(directory, "kill the agent")
        if os.environ["WORLD_SIZE"] == "2":
            threading.Event().wait()
        return float(total)

    answer = maggy_like.run(
        meet_again,
        workers=2,
        failures=FailurePolicy(min_workers=1),
        engine=Shrinking(tmp_path),
        directory=tmp_path / "runs",
        callbacks=[impatient],
        progress=False,
    )
    assert answer == 1.0
