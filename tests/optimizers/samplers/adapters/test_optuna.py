from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna_cases import NEEDS_TORCH, PLANE, bowl, cma, fixing, nsga, search

from optimizers.core.base import History, Observation, Optimizer, Pending, Problem
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.errors import OptimizerError
from optimizers.samplers import optuna_sampler as adapter
from optimizers.samplers.non_adaptive import Grid
from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import MedianRule
from optimizers.space import Config
from optimizers.space.domains import Float, Integer
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES, check_optimizer

ONE = RandomSampler(seed=1)


@pytest.mark.conformance
@pytest.mark.parametrize(
    "sampler", [cma, nsga, lambda seed: TPESampler(seed=seed, n_startup_trials=4, multivariate=False)]
)
def test_optuna_samplers_keep_the_contract(sampler: Callable[[int], BaseSampler]) -> None:
    check_optimizer(lambda: OptunaSampler(sampler), spaces={name: SPACES[name] for name in ("mixed", "conditional")})


@NEEDS_TORCH
def test_gaussian_processes_keep_away_from_what_runs_and_need_no_memory() -> None:
    def make() -> OptunaSampler:
        return OptunaSampler(lambda seed: GPSampler(seed=seed, n_startup_trials=8))

    history = History(Problem(SearchSpace(x=Float(0, 1))))
    for trial in range(8):
        history.apply(Observation(trial, {"x": trial / 8}, 1, (trial / 8 - 0.7) ** 2))
    optimizer = make()
    first = optimizer.ask(8, history)
    history.apply(Pending(8, first))
    second = optimizer.ask(9, history)
    assert abs(first["x"] - 0.7) < 0.1
    assert abs(first["x"] - second["x"]) > 1e-3
    assert make().ask(9, history) == second


@pytest.mark.parametrize("sampler", [TPE(n_startup_trials=4).sampler, cma, nsga])
def test_a_resumed_search_goes_on_the_same(sampler: Callable[[int], BaseSampler]) -> None:
    """With rungs, failures, several at a time and other ends than begins."""
    space = SPACES["conditional"]
    optimizer = OptunaSampler(sampler)
    study = Study(space, ASHA(min_budget=1, sampler=optimizer), max_budget=9, direction="min", n_trials=60)
    rng = np.random.default_rng(0)
    running: list[Trial] = []
    while len(study.trials) < 45:
        while len(running) < 5 and (trial := study.ask()):
            running.append(trial)
        trial = running.pop(int(rng.integers(len(running))))
        losses = [math.nan, 1e30, *rng.random(6)]
        study.tell(trial, float(losses[rng.integers(8)]))
    asked = study.history
    resumed = History(study.problem, list(asked.observations), dict(asked.pending))
    index = study.n_asks
    assert OptunaSampler(sampler).ask(index, resumed) == optimizer.ask(index, asked)


@pytest.mark.parametrize(
    ("optimizer", "n", "spread"),
    [
        (TPE(), 60, 0.25),
        (OptunaSampler(lambda seed: CmaEsSampler(seed=seed, popsize=6)), 90, 0.1),
        (OptunaSampler(lambda seed: NSGAIISampler(seed=seed, population_size=10)), 90, 0.3),
        pytest.param(OptunaSampler(lambda seed: GPSampler(seed=seed, n_startup_trials=8)), 20, 0.25, marks=NEEDS_TORCH),
    ],
)
def test_samplers_dwell_where_the_loss_is_small(optimizer: Optimizer, n: int, spread: float) -> None:
    late = search(optimizer, n, workers=4).trials[2 * n // 3 :]
    assert np.median([math.sqrt(bowl(trial.config)) for trial in late]) < spread  # 0.42 by chance


def test_cma_es_without_parallelism_converges() -> None:
    study = search(OptunaSampler(lambda seed: CmaEsSampler(seed=seed)), 150, workers=1)
    assert math.sqrt(bowl(study.trials[-1].config)) < 0.01


def test_fixed_parameters_stay_and_the_rest_is_searched() -> None:
    def fixed(seed: int) -> BaseSampler:
        return PartialFixedSampler({"y": 0.25}, cma(seed))

    study = search(OptunaSampler(fixed), 40, workers=2)
    assert {trial.config["y"] for trial in study.trials} == {0.25}
    assert np.median([abs(trial.config["x"] - 0.7) for trial in study.trials[30:]]) < 0.1


@pytest.mark.parametrize("base", [cma, nsga, lambda seed: TPESampler(seed=seed, n_startup_trials=4)])
def test_fixed_values_stay_where_the_sampler_repeats_itself(base: Callable[[int], BaseSampler]) -> None:
    """With few other values, most proposals are tried already; and fixed values are given as they are written."""
    space = SearchSpace(act=["relu", "gelu"], drop=Float(0.0, 0.5, step=0.1), units=Integer(1, 3), size=[8, 16])
    fixed = {"act": "gelu", "drop": 0.3}
    optimizer = OptunaSampler(lambda seed: PartialFixedSampler(fixed, base(seed)))
    study = Study(space, optimizer, direction="min", n_trials=20)
    while trial := study.ask():
        study.tell(trial, float(trial.config["units"]))
    assert len(study.trials) == 20
    assert {(trial.config["act"], trial.config["drop"]) for trial in study.trials} == {
        ("gelu", space.domains["drop"].normalize(0.3))
    }
    assert len({(trial.config["units"], trial.config["size"]) for trial in study.trials}) == 6


def test_fixed_values_stay_where_the_space_allows_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def little(config: Config) -> bool:
        return bool(config["x"] < 0.01)

    optimizer = OptunaSampler(lambda seed: PartialFixedSampler({"y": 0.25}, cma(seed)))
    study = search(optimizer, 10, workers=2, space=PLANE.where(little))
    assert {trial.config["y"] for trial in study.trials} == {0.25}

    def never(config: Config) -> bool:
        return bool(config["y"] > 0.5)

    monkeypatch.setattr(adapter, "_LAST", 1000)
    with pytest.raises(
        OptimizerError, match=r"the constraints reject all .* of PartialFixedSampler in .* fix other values"
    ):
        search(optimizer, 1, workers=1, space=PLANE.where(never))


@pytest.mark.parametrize("wrap", [lambda inner: inner, MedianRule, lambda inner: ASHA(sampler=inner)])
def test_an_exhaustive_sampler_knows_how_many_configurations_there_are(wrap: Callable[[Optimizer], Optimizer]) -> None:
    space = SearchSpace(act=["relu", "gelu"], units=Integer(1, 5))
    assert wrap(OptunaSampler(lambda seed: BruteForceSampler(seed))).size(space) == 10
    assert wrap(OptunaSampler(lambda seed: RandomSampler(seed))).size(space) is None
    assert wrap(Grid(5)).size(space) == 10


@pytest.mark.parametrize("hasty", [False, True])
def test_brute_force_ends_when_all_configurations_are_tried(hasty: bool) -> None:
    """Each once, with children before their parents in the space, a constraint, and several at a time."""
    space = SearchSpace(
        rate=Float(0.0, 0.4, step=0.1, when={"act": "relu"}), act=["relu", "gelu"], units=Integer(1, 5), fixed=3
    ).where(lambda config: config["units"] != 4)
    optimizer = OptunaSampler(lambda seed: BruteForceSampler(seed, avoid_premature_stop=hasty))
    study = Study(space, optimizer, direction="min", n_trials=80)
    running: list[Trial] = []
    while (trial := study.ask()) or running:
        running += [trial] if trial else []
        if trial is None or len(running) == 4:
            done = running.pop(0)
            study.fail(done) if done.id % 7 == 3 else study.tell(done, 1.0)
    assert len(study.trials) == 24
    assert len({repr(trial.config) for trial in study.trials}) == 24


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptunaSampler(TPESampler), r"got <class .*use lambda seed: TPESampler\(seed=seed\)"),  # type: ignore[arg-type]
        (lambda: OptunaSampler(TPESampler(seed=1)), r"use lambda seed: TPESampler\(seed=seed\)"),  # type: ignore[arg-type]
        (lambda: OptunaSampler(lambda seed: seed), "must return a sampler of Optuna, got 0"),  # type: ignore[arg-type,return-value]
        (lambda: OptunaSampler(lambda seed: ONE), "must return a new sampler at each call, got .* twice"),
        (lambda: OptunaSampler(lambda seed: QMCSampler(seed=seed)), "QMCSampler .* use optimizer='sobol'"),
        (lambda: OptunaSampler(lambda seed: GridSampler({"x": [1]}, seed)), "GridSampler .* use optimizer='grid'"),
        (
            lambda: OptunaSampler(lambda seed: CmaEsSampler(seed=seed, with_margin=True)),
            "with_margin of CmaEsSampler must be False, got True",
        ),
        (lambda: OptunaSampler(BruteForceSampler), r"use lambda seed: BruteForceSampler\(seed=seed\)"),  # type: ignore[arg-type]
        (lambda: OptunaSampler(lambda seed: BruteForceSampler(seed)), "give each Float a step, or use optimizer='ran"),
        (lambda: fixing({"z": 1}), "must fix one of .'x', 'y'., got 'z'"),
        (lambda: fixing({"y": 3}), r"cannot fix 'y': 3 is not in Float\(0.0, 1.0\)"),
        (lambda: TPE(n_startup_trials=0), "n_startup_trials must be an integer of at least 1, got 0"),
        (lambda: TPE(n_ei_candidates=True), "n_ei_candidates must be an integer of at least 1, got True"),
        (lambda: TPE(multivariate=1), "multivariate must be True or False, got 1"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_name_the_remedy(make: Callable[[], Optimizer], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        make().validate(Problem(PLANE))


def test_without_optuna_the_error_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(OptimizerError, match=r"TPE needs Optuna; install it with: pip install 'maggy_like\[optuna\]'"):
        TPE().validate(Problem(PLANE))
