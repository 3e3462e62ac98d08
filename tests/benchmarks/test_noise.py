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
    assert first[0] >= 0.0
    assert 0.5 < first[1] < 2.0  # random configurations have a regret of about 1
