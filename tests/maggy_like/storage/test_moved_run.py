"""A run's folder is copied, moved and deleted."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
import train_functions as fns
from background import Background

from maggy_like import Float, Reporter, Result, lagom
from maggy_like.errors import JournalLostError
from optimizers.core.events import AttemptEnded, Event
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA

pytestmark = pytest.mark.e2e


def search(directory: Path, train_fn: Any = fns.climb_on, **options: Any) -> Result:
    defaults: dict[str, Any] = {"engine": "inline", "optimizer": ASHA(mode="promotion"), "n_trials": 9}
    common: dict[str, Any] = {"directory": directory, "name": "run", "progress": False, "max_budget": 9}
    return lagom(train_fn, {"x": Float(0, 1)}, **{**defaults, **common, **options})


def states_of(run: Path) -> dict[str, bytes]:
    store = run / "checkpoints"
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*.pkl")}


def test_both_copies_of_a_run_go_on_and_touch_nothing_of_each_other(tmp_path: Path) -> None:
    background, rested = Background(), []

    def on_event(event: Event) -> None:
        rested.extend([event] if isinstance(event, AttemptEnded) and event.state is TrialState.PAUSED else [])
        if len(rested) == 5:
            background.stop()

    first = background.run(search, tmp_path / "here", callbacks=[on_event])
    assert first.counts[TrialState.PAUSED] >= 3
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    shutil.move(tmp_path / "here", tmp_path / "there")
    before = states_of(tmp_path / "copy" / "run")
    moved = search(tmp_path / "there", resume=True)
    assert states_of(tmp_path / "copy" / "run") == before
    after = states_of(tmp_path / "there" / "run")
    copied = search(tmp_path / "copy", resume=True)
    assert states_of(tmp_path / "there" / "run") == after
    assert not (tmp_path / "here").exists()
    for result in (moved, copied):
        assert (result.ending, result.failures, len(result.trials)) == ("completed", [], 9)
        assert any(trial.metrics.get("start", 1) > 1 for trial in result.trials)  # from a state that was saved before
    assert moved.best_config == copied.best_config


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_search_whose_folder_is_gone_says_so_and_has_its_result(tmp_path: Path, how: str) -> None:
    def train(x: float, reporter: Reporter) -> float:
        if reporter.trial == 2:
            if how == "deleted":
                shutil.rmtree(tmp_path / "run")
            else:
                (tmp_path / "run").rename(tmp_path / "elsewhere")
            while not threading.Event().wait(0.01):  # until it is told to stop
                reporter.report(score=x)
        return x

    with pytest.raises(JournalLostError, match=f"run was {how} with its journal .*so the search was ended") as lost:
        search(tmp_path, train, optimizer="random", max_budget=10**9)
    result = lost.value.result
    assert isinstance(result, Result)
    assert [trial.state for trial in result.trials[:2]] == [TrialState.COMPLETED] * 2
    assert not any("resume=True" in note for note in getattr(lost.value, "__notes__", []))


def test_an_object_store_s_run_that_is_deleted_is_missed_with_the_next_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.storage.journal.object_store.RENEWAL", 0.0)

    def train(x: float, reporter: Reporter) -> float:
        if reporter.trial == 1:
            fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)
            while not threading.Event().wait(0.01):
                reporter.report(score=x)
        return x

    with pytest.raises(JournalLostError, match=r"the lease of the run in memory://.*/run was deleted") as lost:
        search(f"memory://{tmp_path.name}", train, optimizer="random", max_budget=10**9)
    assert isinstance(lost.value.result, Result)
