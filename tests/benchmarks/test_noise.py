from __future__ import annotations

import numpy as np
import pytest

from benchmarks.landscapes import landscape
from benchmarks.noise import NOISE, Noisy, run
from benchmarks.tables import CURVES
from benchmarks.tasks import LastStep


def test_the_same_configuration_comes_out_differently_with_the_noise_that_is_said() -> None:
    inner = LastStep(landscape("two"))
    noisy = Noisy(inner, 0)
    config = {"x": 1.0, "y": 2.0}
    reported = [noisy(config, 1) for _ in range(400)]
    regret = inner.regret(inner(config, 1)[0])
    assert [loss for loss, _ in reported] == noisy.losses
    assert set(noisy.regrets) == {regret}
    assert np.mean(noisy.losses) == pytest.approx(regret, abs=0.05)
    assert np.std(noisy.losses) == pytest.approx(NOISE, rel=0.1)
    assert {seconds for _, seconds in reported} == {inner(config, 1)[1]}


def test_a_search_is_the_same_again_and_another_one_with_another_seed() -> None:
    first, again, other = (run("two", "random", seed, CURVES) for seed in (1, 1, 2))
    assert first == again != other
    assert min(first["best"], first["recommended"]) >= 0.0
    assert 0.5 < first["late"] < 2.0  # random configurations have a regret of about 1


def test_a_trial_has_the_same_noise_at_all_steps() -> None:
    inner = landscape("two")
    noisy = Noisy(inner, 0)
    configs = [{"x": 1.0, "y": 2.0}, {"x": 3.0, "y": 2.0}]
    luck = [[noisy(config, step)[0] - noisy.true(config, step) for config in configs] for step in (1, 2, 50)]
    assert luck[1] == pytest.approx(luck[0])
    assert luck[2] == pytest.approx(luck[0])
    assert luck[0][0] != luck[0][1]
    assert noisy.regrets == [noisy.true(config, 50) for config in configs]
