from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIIISampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FixedTrial, FrozenTrial, TrialState

from optimizers.core.base import History, Observation, Optimizer, Pending, Problem
from optimizers.core.events import Measured
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.core.trial import TrialState as OurState
from optimizers.errors import OptimizerError
from optimizers.samplers import optuna_sampler as adapter
from optimizers.samplers.non_adaptive import Grid
from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
from optimizers.samplers.optuna_space import distributions, suggest, to_params
from optimizers.samplers.optuna_study import clipped
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import MedianRule
from optimizers.space import Config
from optimizers.space.domains import Choice, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES, check_optimizer

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="Optuna's Gaussian process needs torch")


PLANE = SearchSpace(x=Float(0, 1), y=Float(0, 1))
TWISTED = SearchSpace(
    steps=Float(0.1, 0.95, step=0.2),
    whole=Integer(3, 20, step=4),
    logs=Integer(1, 500, log=True),
    truth=Choice([1, True, None, "1"]),
    one=Choice(["only"], when={"truth": [True, 1]}),
    sizes=Ordinal([64, 8, "huge"], when={"one": "only"}),
    fixed=3,
)


def cma(seed: int) -> BaseSampler:
    return CmaEsSampler(seed=seed, popsize=4)


def nsga(seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=4)


class Witness(RandomSampler):
    """Notes what it is shown."""

    def __init__(self, seed: int, seen: list[FrozenTrial]) -> None:
        super().__init__(seed)
        self.seen = seen

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        self.seen[:] = study.get_trials()[:-1]  # the last is the one that is asked for
        return {}


def shown(history: History) -> list[FrozenTrial]:
    seen: list[FrozenTrial] = []
    OptunaSampler(lambda seed: Witness(seed, seen)).ask(len(history.observations), history)
    return seen


def fixing(values: dict[str, Any]) -> OptunaSampler:
    return OptunaSampler(lambda seed: PartialFixedSampler(values, cma(seed)))


def bowl(config: Config) -> float:
    return float((config["x"] - 0.7) ** 2 + (config["y"] - 0.2) ** 2)


def search(optimizer: Optimizer, n: int, workers: int, space: SearchSpace = PLANE) -> Study:
    study = Study(space, optimizer, direction="min", seed=1, n_trials=n)
    running: list[Trial] = []
    while (trial := study.ask()) or running:
        if trial:
            running.append(trial)
        if trial is None or len(running) == workers:
            done = running.pop(len(study.trials) % len(running))
            study.tell(done, bowl(done.config))
    return study


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


@pytest.mark.conformance
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


@pytest.mark.conformance
def test_cma_es_without_parallelism_converges() -> None:
    study = search(OptunaSampler(lambda seed: CmaEsSampler(seed=seed)), 150, workers=1)
    assert math.sqrt(bowl(study.trials[-1].config)) < 0.01


def test_fixed_parameters_stay_and_the_rest_is_searched() -> None:
    def fixed(seed: int) -> BaseSampler:
        return PartialFixedSampler({"y": 0.25}, cma(seed))

    study = search(OptunaSampler(fixed), 40, workers=2)
    assert {trial.config["y"] for trial in study.trials} == {0.25}
    assert np.median([abs(trial.config["x"] - 0.7) for trial in study.trials[30:]]) < 0.1


@pytest.mark.conformance
@pytest.mark.parametrize("base", [cma, nsga, lambda seed: TPESampler(seed=seed, n_startup_trials=4)])
def test_fixed_values_stay_where_the_sampler_repeats_itself(base: Callable[[int], BaseSampler]) -> None:
    """With few other values, most proposals are tried already; and fixed values are given as they are written."""
    space = SearchSpace(act=["relu", "gelu"], drop=Float(0.0, 0.5, step=0.1), units=Integer(1, 3), size=[8, 16])
    fixed = {"act": "gelu", "drop": 0.3}
    optimizer = OptunaSampler(lambda seed: PartialFixedSampler(fixed, base(seed)))
    study = Study(space, optimizer, direction="min", n_trials=12)
    while trial := study.ask():
        study.tell(trial, float(trial.config["units"]))
    assert len(study.trials) == 12
    assert {(trial.config["act"], trial.config["drop"]) for trial in study.trials} == {
        ("gelu", space.domains["drop"].normalize(0.3))
    }
    assert len({(trial.config["units"], trial.config["size"]) for trial in study.trials}) == 6


@pytest.mark.slow
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
        (lambda: OptunaSampler(lambda seed: seed), "of Optuna, got 0; use lambda seed: TPE"),  # type: ignore[arg-type,return-value]
        (
            lambda: OptunaSampler(lambda seed: ONE),
            r"new sampler at each call, got one \w+ twice; use lambda seed: \w+\(seed=seed",
        ),
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


# -- what Optuna is shown of a search ---------------------------------------------------------------


def test_results_are_paired_with_their_own_configurations() -> None:
    """Under asynchrony, ends come in another order than asks: here the last asked always ends first."""
    seen: list[FrozenTrial] = []
    study = Study(PLANE, OptunaSampler(lambda seed: Witness(seed, seen)), direction="max", n_trials=30)
    running: list[Trial] = []
    ended = 0
    while len(study.trials) < 30:
        while len(running) < 4 and (trial := study.ask()):
            running.append(trial)
            assert [trial.state for trial in seen].count(TrialState.COMPLETE) == ended
            assert all(
                trial.value == pytest.approx(bowl(trial.params)) for trial in seen if trial.state is TrialState.COMPLETE
            )
        last = running.pop()
        study.tell(last, -bowl(last.config))
        ended += 1
    assert len(seen) >= 29


def test_a_trial_counts_once_with_the_loss_of_its_highest_step() -> None:
    history = History(Problem(PLANE))
    first, second, third = ({"x": x, "y": 0.5} for x in (0.1, 0.2, 0.3))
    history.apply(Observation(0, first, 1, 5.0, ended=False))
    history.apply(Pending(1, second))
    history.apply(Pending(2, third))
    history.apply(Observation(1, second, 1, 4.0))
    history.apply(Observation(0, first, 3, 2.0))
    history.apply(Pending(0, first))  # promoted: what it has is better than a lie
    seen = shown(history)
    assert [(trial.state, trial.params["x"], trial.value) for trial in seen] == [
        (TrialState.COMPLETE, 0.1, 2.0),
        (TrialState.COMPLETE, 0.2, 4.0),
        (TrialState.RUNNING, 0.3, None),
    ]
    assert seen[0].intermediate_values == {1: 5.0, 3: 2.0}
    assert [trial.number for trial in seen] == [0, 1, 2]


def test_failures_have_the_worst_loss_once_there_is_one() -> None:
    history = History(Problem(PLANE))
    seen: list[FrozenTrial] = []
    optimizer = OptunaSampler(lambda seed: Witness(seed, seen))
    states = []
    for trial, loss in enumerate([math.inf, 3.0, math.nan, 7.0]):
        history.apply(Observation(trial, {"x": 0.1 * trial, "y": 0.5}, 1, loss))
        optimizer.ask(trial, history)
        states.append([trial.value for trial in seen])
    assert states == [[None], [3.0, 3.0], [3.0, 3.0, 3.0], [7.0, 3.0, 7.0, 7.0]]


@settings(max_examples=examples(50))
@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_clipped_losses_keep_their_order(losses: list[float]) -> None:
    array = np.array(losses)
    cut = clipped(array)
    finite = np.isfinite(array)
    assert np.isfinite(cut).all() == finite.any()
    if finite.any():
        order = np.argsort(array[finite])
        assert (np.diff(cut[finite][order]) >= 0).all()
        assert (cut[~finite] == cut.max()).all()
        assert np.isfinite(np.square(cut)).all()


@settings(max_examples=examples(50))
@given(st.sampled_from([*SPACES.values(), TWISTED]), st.integers(0, 10_000))
def test_configurations_survive_the_way_to_optuna_and_back(space: SearchSpace, seed: int) -> None:
    config = space.sample(np.random.default_rng(seed))
    back = suggest(space, distributions(space), FixedTrial(to_params(space, config)))
    assert repr(back) == repr(config)  # 1, 1.0 and True are told apart


# -- constraints and several objectives of Optuna ---------------------------------------------------


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


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("sampler", "n"),
    [
        (constrained, 90),
        (lambda seed: TPESampler(seed=seed, constraints_func=within_memory), 60),
        pytest.param(
            lambda seed: GPSampler(seed=seed, n_startup_trials=8, constraints_func=within_memory), 12, marks=NEEDS_TORCH
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


@pytest.mark.conformance
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
