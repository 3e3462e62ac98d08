from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import optuna
import pytest
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIIISampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FrozenTrial
from optuna_cases import NEEDS_TORCH, cma, search

from optimizers.core.base import History, Observation, Optimizer, Problem
from optimizers.core.events import Measured
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.core.trial import TrialState as OurState
from optimizers.errors import OptimizerError
from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
from optimizers.space.domains import Float
from optimizers.testing import SPACES


def constrained(seed: int, seen: list[FrozenTrial] | None = None) -> BaseSampler:
    def constraints(trial: FrozenTrial) -> tuple[float, ...]:
        if seen is not None:
            seen.append(trial)
        assert trial.params["act"] in ("relu", "gelu")
        return (trial.user_attrs["megabytes"] - 30.0,)

    return NSGAIISampler(seed=seed, population_size=8, constraints_func=constraints)


def search_under_constraint(optimizer: Optimizer, n: int) -> Study:
    """The better, the more memory; above 30 it counts for nothing."""
    study = Study({"x": Float(0, 100), "act": ["relu", "gelu"]}, optimizer, seed=3, direction="max", n_trials=n)
    while trial := study.ask():
        x = trial.config["x"]
        study.apply(Measured(trial.id, trial.attempt, "accuracy", {"accuracy": ([1], [x]), "megabytes": ([1], [x])}))
        study.fail(trial) if trial.id % 9 == 5 else study.tell(trial)
    return study


def within_memory(trial: FrozenTrial) -> tuple[float, ...]:
    return (trial.user_attrs["megabytes"] - 30.0,)


@pytest.mark.parametrize(
    ("sampler", "n"),
    [
        (constrained, 90),
        (lambda seed: TPESampler(seed=seed, constraints_func=within_memory), 60),
        pytest.param(
            lambda seed: GPSampler(seed=seed, n_startup_trials=8, constraints_func=within_memory),
            12,
            marks=NEEDS_TORCH,
        ),
    ],
    ids=["nsga2", "tpe", "gp"],
)
def test_constraints_of_the_sampler_are_kept_to(sampler: Callable[[int], BaseSampler], n: int) -> None:
    late = search_under_constraint(OptunaSampler(sampler), n).trials[-n // 3 :]
    assert 20.0 < np.median([trial.config["x"] for trial in late]) < 40.0  # the best lies at 30, without it at 100


def test_the_function_of_constraints_sees_each_ended_trial_once_as_people_know_it() -> None:
    seen: list[FrozenTrial] = []
    study = search_under_constraint(OptunaSampler(lambda seed: constrained(seed, seen)), 30)
    ended = [trial for trial in study.trials if trial.state is OurState.COMPLETED][: len(seen)]
    assert [trial.params for trial in seen] == [trial.config for trial in ended]
    assert [trial.user_attrs for trial in seen] == [
        {"accuracy": trial.config["x"], "megabytes": trial.config["x"]} for trial in ended
    ]
    assert len(seen) == 26  # all but the failed ones, and the last, after which nothing is asked


def test_a_failing_function_of_constraints_raises_with_the_metrics_there_are() -> None:
    def sampler(seed: int) -> BaseSampler:
        return TPESampler(seed=seed, constraints_func=lambda trial: [trial.user_attrs["memory"]])

    with pytest.raises(OptimizerError, match=r"TPESampler cannot read trial 0.*'megabytes'.*KeyError: 'memory'"):
        search_under_constraint(OptunaSampler(sampler), 3)


SEVERAL = {
    "nsga2": lambda seed: NSGAIISampler(seed=seed, population_size=8),
    "nsga3": lambda seed: NSGAIIISampler(seed=seed, population_size=8),
    "tpe": lambda seed: TPESampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}


def search_for_two(optimizer: Optimizer, n: int) -> Study:
    """Both are best between x=0 and x=1, with y=0; every ninth trial fails."""
    study = Study(
        {"x": Float(-5, 5), "y": Float(0, 5)}, optimizer, seed=1, n_trials=n,
        direction=["min", "max"], objectives=["cost", "gain"],
    )  # fmt: skip
    running: list[Trial] = []
    while (trial := study.ask()) or running:
        running += [trial] if trial else []
        if trial is None or len(running) == 3:
            done = running.pop(len(study.trials) % len(running))
            x, y = done.config["x"], done.config["y"]
            if done.id % 9 == 4:
                study.fail(done)
            else:
                study.tell(done, [x**2 + y, math.nan if done.id == 7 else -((x - 1.0) ** 2) - y])
    return study


@pytest.mark.parametrize("name", SEVERAL)
def test_several_objectives_are_served(name: str) -> None:
    study = search_for_two(OptunaSampler(SEVERAL[name]), 90)
    off = [max(0.0, abs(t.config["x"] - 0.5) - 0.5) + t.config["y"] for t in study.trials[-30:]]
    assert len(study.trials) == 90
    assert len(study.pareto) > 1
    if name != "random":
        assert np.median(off) < 2.8  # 4.3 by chance


def test_what_serves_one_objective_says_so_before_anything_starts() -> None:
    with pytest.raises(OptimizerError, match="CmaEsSampler supports one objective, got 2; use NSGAIISampler"):
        search_for_two(OptunaSampler(cma), 3)


@pytest.mark.parametrize("name", [*SEVERAL, "constrained"])
def test_searches_with_constraints_or_several_objectives_are_resumed_the_same(name: str) -> None:
    make = SEVERAL.get(name, constrained)
    optimizer = OptunaSampler(make)
    study = search_for_two(optimizer, 40) if name in SEVERAL else search_under_constraint(optimizer, 40)
    asked = study.history
    resumed = History(study.problem, list(asked.observations), dict(asked.pending))
    assert OptunaSampler(make).ask(41, resumed) == optimizer.ask(41, asked)


def test_one_optimizer_serves_two_searches() -> None:
    shared = TPE(n_startup_trials=4)
    first, second = (search(optimizer, 12, 2) for optimizer in (shared, TPE(n_startup_trials=4)))
    again = search(shared, 12, 2)
    assert [t.config for t in first.trials] == [t.config for t in second.trials] == [t.config for t in again.trials]


def test_optuna_stays_silent_and_its_verbosity_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    history = History(Problem(SPACES["conditional"]))
    optimizer = OptunaSampler(lambda seed: CmaEsSampler(seed=seed, lr_adapt=True))
    optimizer.validate(history.problem)
    for index in range(8):  # a choice and conditions: CMA-ES would tell of each that it cannot model them
        history.apply(Observation(index, optimizer.ask(index, history), 1, float(index)))
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before
