"""A store that refuses in mid-search, for real: where its directory was, there is a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns
from background import Background

from maggy_like import FailurePolicy, Float, Result, lagom, run
from maggy_like.driver import runner as job
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.failures import StoreOutage
from maggy_like.errors import StoreError, UserError
from optimizers.core.events import AttemptEnded, CheckpointSaved, Event
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA

pytestmark = pytest.mark.e2e


class Store:
    """A store of a search, and the search; it refuses once two trials have saved a state, and before they save another.

    Attributes:
        waits: Trials that said that they wait.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link = directory / "states"
        self.waits: set[int] = set()
        self.then: Any = self.serve
        self._directory = directory
        (directory / "disk").mkdir()
        (directory / "full").touch()
        os.mkfifo(directory / "gate")
        self.serve()
        self._saved: set[int] = set()
        self._gate = -1
        waits = StoreOutage.waits

        def wait(outage: StoreOutage, trial: int, reason: str, now: float) -> Any:
            shown = waits(outage, trial, reason, now)
            self.waits.add(trial)
            if len(self.waits) == 2:
                self.then()
            return shown

        monkeypatch.setattr(StoreOutage, "waits", wait)

    def serve(self) -> None:
        self._point_to("disk")

    def _point_to(self, target: str) -> None:
        (self._directory / "new").symlink_to(self._directory / target)
        os.replace(self._directory / "new", self.link)

    def refuse(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved) and self._gate < 0:
            self._saved.add(event.trial)
            if len(self._saved) == 2:
                self._point_to("full")
                self._gate = os.open(
                    self._directory / "gate", os.O_RDWR
                )  # from now on it is open, also to later trials

    def close(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)

    def search(self, **options: Any) -> Result:
        common: dict[str, Any] = {
            "optimizer": "random", "n_trials": 6, "max_budget": 5, "workers": 2, "engine": "local", "name": "run",
            "directory": self._directory, "store": self.link, "progress": "plain", "callbacks": [self.refuse],
            "failures": FailurePolicy(max_attempts=1),
        }  # fmt: skip
        climb = partial(fns.climb_on_past_gate_at, 2, str(self._directory / "gate"))
        return lagom(climb, {"x": Float(0, 1)}, **{**common, **options})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path, monkeypatch)) as store:
        yield store


def test_a_store_that_refuses_for_a_while_fails_no_trial(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    result = store.search()
    assert [(trial.state, trial.attempt, len(trial.curve)) for trial in result.trials] == [
        (TrialState.COMPLETED, 1, 5)
    ] * 6
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("; trials wait and try again") == 1
    assert f"the store {store.link.as_uri()}/run cannot be written (" in said
    assert said.count("the store serves again after") == 1
    assert not list(store.link.rglob("*.part"))


def test_a_store_that_stays_away_ends_the_run_and_resume_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.then = lambda: None
    monkeypatch.setattr(job, "StateMachine", partial(StateMachine, store_patience=1.0))
    with pytest.raises(StoreError, match=r"the store file://.*cannot be written \(.*resume=True: the") as caught:
        store.search()
    assert {trial.state for trial in caught.value.result.trials} <= {TrialState.PENDING, TrialState.COMPLETED}
    store.serve()
    again = store.search(resume=True)
    assert [(trial.state, len(trial.curve), trial.losses) for trial in again.trials] == [
        (TrialState.COMPLETED, 5, 0)
    ] * 6


def test_a_stop_ends_the_wait(store: Store) -> None:
    handle = Background()
    store.then = handle.stop
    result = handle.run(store.search)
    assert result.ending == "stopped"
    assert [trial.state for trial in result.trials].count(TrialState.FAILED) == 0
    store.serve()
    assert store.search(resume=True).counts == {TrialState.COMPLETED: 6}


def test_what_a_function_returned_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    def answer(directory: str) -> Any:
        link = Path(directory) / "states"
        (Path(directory) / "new").symlink_to(Path(directory) / "full")
        os.replace(Path(directory) / "new", link)
        return {1, 2, 3}  # no plain data: it goes to the store

    store.waits.add(-1)
    returned = run(
        answer,
        {"directory": str(tmp_path)},
        workers=1,
        engine="local",
        directory=tmp_path,
        store=store.link,
        progress=False,
    )
    assert returned == {1, 2, 3}
    assert store.waits == {-1, 0}


@pytest.mark.parametrize("lost", ["newest", "all"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["truncated", "gone"])
def test_promoted_trials_whose_states_are_lost_are_trained_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: str, is_gone: bool
) -> None:
    damaged: set[int] = set()

    def damage(event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.state is TrialState.PAUSED and event.trial not in damaged:
            damaged.add(event.trial)
            states = sorted((tmp_path / "run" / "checkpoints" / f"{event.trial:05d}").iterdir())
            assert len(states) == 2
            for state in states[-1:] if lost == "newest" else states:
                state.unlink() if is_gone else state.write_bytes(state.read_bytes()[:-1])

    result = lagom(
        fns.climb_on,
        {"x": Float(0, 1)},
        optimizer=ASHA(min_budget=3, mode="promotion", sampler="random"),
        n_trials=9,
        max_budget=9,
        workers=1,
        engine="inline",
        name="run",
        directory=tmp_path,
        progress=False,
        callbacks=[damage],
    )
    promoted = [trial for trial in result.trials if trial.attempt > 1]
    assert promoted
    assert not result.counts.get(TrialState.FAILED)
    for trial in promoted:
        assert list(trial.curve.steps) == list(range(1, trial.budget + 1))
        assert trial.metrics["start"] == (3 if lost == "newest" else 1)
    assert len(caplog.records) == len(promoted)
    said = caplog.records[0].getMessage()
    what = "does not exist" if is_gone else "is damaged"
    assert f"checkpoints/{promoted[0].id:05d}/1-3.pkl {what}" in said
    assert ("the trial starts from the beginning" in said) is (lost == "all")


def test_a_best_state_that_is_lost_is_named(tmp_path: Path) -> None:
    result = lagom(fns.climb_on, {"x": Float(0, 1)}, optimizer="random", n_trials=2, max_budget=3, workers=1,
                   engine="inline", name="run", directory=tmp_path, progress=False)  # fmt: skip
    file = Path(result.best_checkpoint.removeprefix("file://"))
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"the checkpoint file://{file} (is damaged|does not exist)") as caught:
            result.load_best()
        assert isinstance(caught.value, UserError)  # what earlier releases raised for a state that is gone
        file.unlink(missing_ok=True)


def test_logs_that_cannot_be_written_are_told_of_without_a_display(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").touch()
    result = lagom(fns.talk, {"x": Float(0, 1)}, optimizer="random", n_trials=4, workers=2, engine="local", name="run",
                   directory=tmp_path, progress=False)  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 4}
    (record,) = (record for record in caplog.records if "objective" not in record.getMessage())
    assert "the output of trials is not in their log files: 0000" in record.getMessage()
    assert "cannot be written (" in record.getMessage()
