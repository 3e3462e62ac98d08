"""Population-based training on real processes: children go on from their parents' states."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gate import Gate

from maggy_like import Float, Result, lagom
from maggy_like.display import LogLine, SilentDisplay, Snapshot
from maggy_like.display.progress import ENOUGH_TRIALS, remaining
from maggy_like.errors import OptimizerError
from maggy_like.protocol.state_names import parse_name
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule

pytestmark = pytest.mark.e2e

SPACE = {"rate": Float(1e-3, 1.0, log=True)}


def anneal(rate: float, reporter: Any) -> None:
    """The expected loss of SGD under noise, from the restored state on."""
    step, loss = reporter.restore() or (0, 100.0)
    while step < reporter.budget:
        step, loss = step + 1, (1.0 - rate) ** 2 * loss + rate**2
        reporter.checkpoint((step, loss))
        reporter.report(loss=loss, step=step)


def anneal_late(rested: str, born: str, gate: str, rate: float, reporter: Any) -> None:
    """``anneal``; the first child dies before it reads its parent's state, and its next attempt reads it late.

    The worst of the first four pauses last, so that it is compared with all others and given up. None of them goes on
    from its first pause before there is a child: else every possible parent might have ended by then.
    """
    if reporter.trial == 3 and reporter.attempt == 1:
        open(rested, "rb").close()
    if reporter.trial < 4 and reporter.attempt == 2:
        open(born, "rb").close()
    if reporter.trial == 4 and reporter.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if reporter.trial == 4 and reporter.attempt == 2:
        open(gate, "rb").close()
    anneal(rate, reporter)


def anneal_past_gate(gate: str, rate: float, reporter: Any) -> None:
    """``anneal``; those after the first seven wait until somebody has opened the named pipe for writing."""
    if reporter.trial > 6:
        open(gate, "rb").close()
    anneal(rate, reporter)


def search(train_fn: Any, directory: Path, space: Any = SPACE, **options: Any) -> Result:
    defaults = {
        "optimizer": PBT(population=4, interval=2, quantile=0.5),
        "n_trials": 16,
        "max_budget": 12,
        "direction": "min",
        "engine": "local",
        "workers": 2,
        "directory": directory,
        "progress": False,
    }
    return lagom(train_fn, space, **{**defaults, **options})


def check_descent(trials: list[Trial]) -> int:
    """Check that each child's first loss follows from its parent's loss at that step; return the number of children."""
    children = [trial for trial in trials if trial.parent is not None and len(trial.curve)]
    for child in children:
        parent, rate = trials[child.parent or 0], child.config["rate"]
        assert child.curve.steps[0] == child.start + 1
        assert child.start % 2 == 0
        before = parent.curve.values[parent.curve.steps.index(child.start)]
        assert child.curve.values[0] == pytest.approx((1.0 - rate) ** 2 * before + rate**2)
    return len(children)


def test_children_go_on_from_their_parents_states(tmp_path: Path) -> None:
    events: list[Event] = []
    result = search(anneal, tmp_path, callbacks=[events.append])
    assert result.ending == "completed"
    assert check_descent(result.trials) >= 3
    assert set(result.counts) <= {TrialState.COMPLETED, TrialState.PAUSED}
    assert all(trial.step == 12 for trial in result.trials if trial.state is TrialState.COMPLETED)
    table = result.to_pandas()
    assert table["parent"].notna().sum() == sum(trial.parent is not None for trial in result.trials)
    check_store(result, events)


@pytest.mark.parametrize("wrap", [lambda pbt: pbt, MedianRule])
def test_its_trials_that_paused_are_no_basis_for_an_estimate_of_the_time(
    wrap: Callable[[PBT], Optimizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept(SilentDisplay):
        def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
            shown.append(snapshot)

    shown: list[Snapshot] = []
    monkeypatch.setattr("maggy_like.api.run_settings.make_display", lambda *given, **options: Kept())
    optimizer = wrap(PBT(population=4, interval=2, quantile=0.5))
    search(anneal, tmp_path, engine="inline", workers=1, optimizer=optimizer, n_trials=40)
    paused = [snapshot for snapshot in shown if snapshot.counts.get(TrialState.PAUSED, 0) >= ENOUGH_TRIALS]
    assert paused
    assert {remaining(shown[0], snapshot) for snapshot in paused} == {None}


def check_store(result: Result, events: list[Event]) -> None:
    """Check that the store has all states that are needed, and no others but what a last attempt may leave.

    That is the state before its newest one, and those that were needed as it started: an attempt removes the others.
    """
    store = result.directory / "checkpoints"
    files = {str(file.relative_to(store)) for file in store.glob("*/*")}
    study = Study(SPACE, PBT(population=4, interval=2, quantile=0.5), direction="min", max_budget=12, n_trials=16)
    needed: set[str] = set()
    at_start: dict[int, set[str]] = {}
    for event in events:
        if isinstance(event, AttemptStarted):
            at_start[event.trial] = needed
        study.apply(event)
        needed = {
            state.name
            for trial in study.trials
            for state in (trial.checkpoint, trial.rest, trial.best_checkpoint)
            if state is not None
        }
    assert needed <= files
    for trial in result.trials:
        left = {name for name in files - needed - at_start.get(trial.id, set()) if parse_name(name).trial == trial.id}
        assert {parse_name(name).attempt for name in left} <= {trial.attempt}
        assert len(left) <= 1


def test_a_child_that_reads_late_finds_its_parents_state(tmp_path: Path) -> None:
    """The child is killed; its next attempt waits until the parent has ended, and reads the parent's old state."""
    rested, born, gate = (Gate(tmp_path / name) for name in ("rested", "born", "gate"))
    parents: list[int | None] = []
    resting: set[int] = set()

    def on_event(event: Event) -> None:
        if isinstance(event, TrialCreated) and event.trial == 4:
            parents.append(event.parent)
            born.open()
        if isinstance(event, AttemptEnded) and event.state is TrialState.PAUSED:
            resting.add(event.trial)
            if resting == {0, 1, 2}:
                rested.open()
        if isinstance(event, AttemptEnded) and event.state is TrialState.COMPLETED and event.trial in parents:
            gate.open()

    gates = {"rested": rested.path, "born": born.path, "gate": gate.path}
    space = {**gates, **SPACE}
    points = [{**gates, "rate": rate} for rate in (0.5, 0.3, 0.02, 0.01)]  # a good half, a bad half
    optimizer = PBT(population=4, interval=2)
    result = search(
        anneal_late, tmp_path, space, optimizer=optimizer, n_trials=5, points_to_evaluate=points, callbacks=[on_event]
    )
    assert result.ending == "completed"
    assert not result.failures
    child = result.trials[4]
    assert child.losses == 1
    assert check_descent(result.trials) == 1
    (parent,) = parents
    assert parent is not None
    assert result.trials[parent].step == 12
    assert child.start < 10


def test_a_resumed_search_knows_the_parent_of_each_trial(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    space = {"gate": gate.path, **SPACE}

    def interrupt(event: Event) -> None:
        if isinstance(event, TrialCreated) and event.trial == 6:
            signal.raise_signal(signal.SIGINT)
            gate.open()  # until now there was no end but this one

    first = search(anneal_past_gate, tmp_path, space, name="run", callbacks=[interrupt])
    assert first.ending == "interrupted"
    again = search(anneal_past_gate, tmp_path, space, name="run", resume=True)
    assert again.ending == "completed"
    assert not again.failures
    known = [(trial.parent, trial.config) for trial in first.trials]
    assert [(trial.parent, trial.config) for trial in again.trials[: len(known)]] == known
    assert check_descent(again.trials) >= 2


@pytest.mark.parametrize("optimizer", ["pbt", MedianRule(PBT())])
def test_a_function_that_saves_nothing_is_refused_before_anything_starts(optimizer: Any, tmp_path: Path) -> None:
    def train(rate: float, reporter: Any) -> None:
        reporter.report(rate)

    with pytest.raises(OptimizerError, match=r"train does not save or restore any; call reporter.restore\(\)"):
        lagom(train, SPACE, optimizer=optimizer, directory=tmp_path, engine="local")
    assert list(tmp_path.iterdir()) == []
