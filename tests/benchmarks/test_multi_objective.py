from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fronts import MADE, problem
from benchmarks.hypervolume import hypervolume, not_dominated
from benchmarks.multi_objective import METHODS, QUICK, RESULTS, Run, figures, load, search, store
from optimizers import Config


class InTurn:
    """Asks for random configurations and notes what it is told, and when."""

    def __init__(self, name: str) -> None:
        self.problem = problem(name, Path())
        self.rng = np.random.default_rng(0)
        self.asked = 0
        self.told: list[tuple[int, int]] = []

    def ask(self, trial: int) -> Config:
        assert trial == self.asked
        self.asked += 1
        return self.problem.space.sample(self.rng)

    def tell(self, trial: int, losses: tuple[float, ...]) -> None:
        self.told.append((trial, self.asked))


def test_the_volume_is_that_of_the_union_of_boxes() -> None:
    corner = np.full(3, 2.0)
    assert hypervolume(np.array([[0.0, 1.0], [1.0, 0.0], [1.5, 1.5]]), corner[:2]) == 3.0
    assert hypervolume(np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [3.0, 0.0, 0.0]]), corner) == pytest.approx(5.0)
    assert hypervolume(np.full((1, 2), 2.0), corner[:2]) == 0.0
    rng = np.random.default_rng(0)
    for m in (2, 3, 4):
        losses, drawn = rng.random((12, m)), rng.random((200_000, m))
        inside = (losses[:, None] <= drawn).all(axis=2).any(axis=0).mean()
        assert hypervolume(losses, np.ones(m)) == pytest.approx(inside, abs=0.005)


def test_what_is_not_dominated_is_kept_once() -> None:
    rows = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [2.0, 2.0]])
    assert not_dominated(rows).tolist() == [[1.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize("name", MADE)
def test_the_front_is_the_best_that_there_is(name: str) -> None:
    made = problem(name, Path())
    rng = np.random.default_rng(1)
    configs = [made.space.sample(rng) for _ in range(300)]
    losses = np.array([made.losses(config) for config in configs])
    assert 0.0 < made.share(losses) < 0.995
    assert all(made.seconds(config) > 0.0 for config in configs)
    assert made.excess is None or all(max(made.excess(config)) <= 0.0 for config in configs)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("zdt1", {"x0": 0.25, **{f"x{i}": 0.0 for i in range(1, 8)}}),
        ("zdt3", {"x0": 0.2, **{f"x{i}": 0.0 for i in range(1, 8)}}),
        ("dtlz2-three", {"x0": 0.3, "x1": 0.6, **{f"x{i}": 0.5 for i in range(2, 7)}}),
        ("constr", {"x": 0.5, "y": 1.5}),
        ("bnh", {"x": 4.0, "y": 3.0}),
        (
            "mixed",
            {"width": 5, "layers": 4, "lr": 1e-3, "decay": 0.3, "activation": "gelu", "optimizer": "adam"},
        ),
    ],
)
def test_the_best_configurations_are_on_the_front(name: str, config: Config) -> None:
    made = problem(name, Path())
    drawn = np.array([made.losses(made.space.sample(np.random.default_rng(seed))) for seed in range(50)])
    best = np.array(made.losses(config))
    assert not ((drawn <= best).all(axis=1) & (drawn < best).any(axis=1)).any()
    assert made.share(best[None]) > 0.1


def test_a_free_worker_gets_work_at_once() -> None:
    peer = InTurn("zdt1")
    ended = search(peer, peer.problem, 20)
    assert len(ended) == 20
    assert sorted(trial for trial, _ in peer.told) == list(range(20))
    assert [asked for _, asked in peer.told] == [min(4 + n, 20) for n in range(20)]


def test_ratios_are_over_the_better_of_the_two_populations(tmp_path: Path) -> None:
    ends = {"bayesian": (0.9, 0.8), "nsga2": (0.3, 0.4), "nsga2_20": (0.6, 0.2), "tpe": (0.95, 0.4)}
    runs = [
        Run(method, name, seed, "optuna 1", 1.0, (0.1, end))
        for method, each in ends.items()
        for name, end in zip(("a", "b"), each, strict=True)
        for seed in range(2)
    ]
    found = figures({run.key: run for run in runs}, ("a", "b"))
    assert found["multi.hypervolume_ratio"] == pytest.approx((0.9 / 0.6 * 0.8 / 0.4) ** 0.5)
    assert found["multi.hypervolume_ratio_low"] == pytest.approx(1.5)
    assert found["multi.behind.tpe"] == 1
    assert found["multi.area.tpe"] == pytest.approx((0.1 + 0.95 + 0.1 + 0.4) / 4)
    store(tmp_path / "runs.jsonl", runs)
    kept = load(tmp_path / "runs.jsonl")
    assert {name for name, _, _ in kept} == {"nsga2", "nsga2_20", "tpe"}  # ours were made by something else


def test_the_kept_runs_are_those_of_the_present_behaviour() -> None:
    kept = load(RESULTS)
    for method in METHODS:
        if method.name in ("bayesian", "random"):
            assert {name for each, name, _ in kept if each == method.name} >= set(QUICK)
