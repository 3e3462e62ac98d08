"""Trials of several workers in whole searches: where they stop, and what the death of a rank costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import multi_worker_functions as fns
import pytest
from family import family

from maggy_like import FailurePolicy, Float, LocalEngine, Reporter, Result, lagom
from optimizers.core.events import AttemptEnded, Event
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import MedianRule, Threshold

pytestmark = pytest.mark.e2e


@pytest.fixture
def events() -> list[Event]:
    """What the search recorded."""
    return []


@pytest.fixture
def search(tmp_path: Path, events: list[Event]) -> Iterator[Any]:
    """lagom with trials of two local workers; nothing may be left behind."""
    (tmp_path / "seen").mkdir()

    def run(train_fn: Any, space: Any = None, **options: Any) -> Result:
        defaults = {"engine": "local", "workers": 2, "workers_per_trial": 2, "directory": tmp_path / "runs",
                    "progress": False, "max_budget": 6, "callbacks": [events.append]}  # fmt: skip
        space = {"directory": str(tmp_path / "seen"), **(space or {"x": Float(0, 1)})}
        return lagom(train_fn, space, **{**defaults, **options})

    before = {process.pid for process in family()}
    yield run
    assert not [p for p in family() if p.pid not in before]


def steps_seen(directory: Path, trial: int, attempt: int = 1) -> list[list[int]]:
    """The steps that each rank has reported."""
    return [
        [int(line) for line in (directory / "seen" / f"{trial}-{attempt}-{rank}").read_text().split()]
        for rank in (0, 1)
    ]


def test_all_ranks_run_a_trial_and_rank_0_reports(search: Any, tmp_path: Path) -> None:
    result = search(fns.climb_together, optimizer="random", n_trials=2)
    assert result.counts == {TrialState.COMPLETED: 2}
    for trial in result.trials:
        assert trial.world_size == 2
        assert list(trial.curve.steps) == [1, 2, 3, 4, 5, 6]
        assert trial.value == pytest.approx(6 * trial.config["x"])
        assert steps_seen(tmp_path, trial.id) == [[1, 2, 3, 4, 5, 6]] * 2
        assert [result.log(trial.id, rank) for rank in (0, 1)] == ["hello of rank 0\n", "hello of rank 1\n"]


def test_a_rule_that_watches_every_report_stops_all_ranks_at_the_same_step(search: Any, tmp_path: Path) -> None:
    rule = Threshold(step=2, worse_than=1.0, direction="max")
    result = search(fns.climb_for_ever, {"x": [0.001, 0.002]}, optimizer=rule, n_trials=2, metric="score")
    assert result.counts == {TrialState.STOPPED: 2}
    for trial in result.trials:
        first, second = steps_seen(tmp_path, trial.id)
        assert first == second
        assert trial.attempt == 1


def test_the_median_of_earlier_trials_stops_all_ranks_at_the_same_step(search: Any, tmp_path: Path) -> None:
    points = [{"x": 1.0}, {"x": 0.9}, {"x": 0.1}]
    rule = MedianRule(grace=1, min_trials=2)
    result = search(fns.climb_until_stopped, optimizer=rule, n_trials=3, max_budget=20, points_to_evaluate=[
        {"directory": str(tmp_path / "seen"), **point} for point in points])  # fmt: skip
    assert result.trials[2].state is TrialState.STOPPED
    first, second = steps_seen(tmp_path, 2)
    assert first == second


def test_a_trial_out_of_time_stops_all_ranks_at_the_same_step(search: Any, events: list[Event], tmp_path: Path) -> None:
    result = search(fns.climb_for_ever, optimizer="random", n_trials=1, failures=FailurePolicy(1, trial_timeout=1.0))
    (trial,) = result.trials
    assert trial.failure is not None
    assert (trial.state, trial.failure.kind) == (TrialState.FAILED, "timeout")
    first, second = steps_seen(tmp_path, 0)
    assert first == second


@pytest.mark.parametrize("mode", ["stopping", "promotion"])
def test_all_ranks_stop_at_the_milestones(search: Any, tmp_path: Path, mode: str) -> None:
    result = search(fns.climb_together, optimizer=ASHA(eta=2, min_budget=1, mode=mode), n_trials=4, max_budget=4)
    assert not result.failures
    assert len(result.trials) == 4
    for trial in result.trials:
        for attempt in range(1, trial.attempt + 1):
            first, second = steps_seen(tmp_path, trial.id, attempt)
            assert first == second
            assert first[-1] in (1, 2, 4)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raise", "rank 1: ValueError: the reason"), ("kill the agent", "rank 1: worker 1 on")],
)
def test_the_next_attempt_of_a_trial_goes_on_from_its_checkpoint(
    search: Any, events: list[Event], fault: str, message: str
) -> None:
    space = {"fault": [fault], "rank": [1]}
    result = search(fns.train_for_search, space, optimizer="random", n_trials=1, metric="loss", direction="min")
    (trial,) = result.trials
    assert (trial.state, trial.attempt, trial.losses) == (TrialState.COMPLETED, 2, 1)
    assert list(trial.curve.steps) == [1, 2, 3, 4, 5, 6]
    lost = next(event for event in events if isinstance(event, AttemptEnded))
    assert lost.failure is not None
    assert lost.failure.message.startswith(message)


PLATFORM = {
    **dict.fromkeys(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "JSM_NAMESPACE_SIZE"), "4"),
    **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"), "3"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "JSM_NAMESPACE_RANK", "MV2_COMM_WORLD_LOCAL_RANK"), "3"),
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "9",
    "SLURM_NTASKS_PER_NODE": "4",
}
"""What Kubeflow, SageMaker, mpirun, srun and jsrun set."""


def step_prepared(directory: str, x: float, reporter: Reporter) -> dict[str, Any]:
    """A step of a prepared model, and what the trial's environment says of ranks."""
    import torch

    model = torch.nn.Linear(1, 1)
    model, optimizer = reporter.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loss = model(torch.ones(4, 1)).square().mean()
    loss.backward()
    optimizer.step()
    found = reporter.average(loss=loss.detach())
    return {"score": found["loss"], "left": " ".join(PLATFORM.keys() & os.environ.keys())}


@pytest.mark.parametrize("engine", ["local", LocalEngine(isolation="worker"), "inline"], ids=["process", "worker", "-"])
def test_a_trial_of_one_worker_is_alone_whatever_the_platform_says(
    search: Any, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    for name, value in PLATFORM.items():
        monkeypatch.setenv(name, value)
    gang = {"workers": 1, "workers_per_trial": 1, "optimizer": "random", "n_trials": 2, "metric": "score"}
    result = search(step_prepared, **gang, direction="min", engine=engine, train_best=True)
    assert result.counts == {TrialState.COMPLETED: 2}
    assert result.training.trial.state is TrialState.COMPLETED
    if engine == "inline":  # a caller's own process is left as it is
        assert os.environ["WORLD_SIZE"] == "4"
    else:
        assert [trial.attributes["left"] for trial in result.trials] == ["", ""]
