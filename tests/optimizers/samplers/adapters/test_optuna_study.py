from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from optuna.trial import FixedTrial, FrozenTrial, TrialState
from optuna_cases import PLANE, TWISTED, Witness, bowl, shown

from optimizers.core.base import History, Observation, Pending, Problem
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.samplers.optuna_space import distributions, suggest, to_params
from optimizers.samplers.optuna_study import clipped
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES


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
