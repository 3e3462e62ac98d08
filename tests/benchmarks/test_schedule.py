from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedule import best_constant, ours, regrets
from benchmarks.schedule_task import STEPS, best_lr, least, train
from optimizers import PBT


def test_the_best_schedule_wins_all_and_no_constant_does() -> None:
    won = 0.0
    for step in range(1, STEPS + 1):
        loss, seconds, won = train({"lr": best_lr(step), "decay": 0.3}, step, won)
        assert seconds == 1.0
        assert loss == pytest.approx(least(step))
    assert least(STEPS) == 0.0
    assert 0.6 < best_constant() < 0.8
    assert best_lr(1) == pytest.approx(0.1)
    assert best_lr(STEPS) == pytest.approx(1e-4)


def test_regrets_are_those_of_the_least_loss_so_far() -> None:
    losses = [(step, 1.0) for step in range(1, STEPS + 1)]
    assert regrets(losses) == pytest.approx([step / STEPS for step in range(1, STEPS + 1)])
    found = regrets([*losses, (10, 0.9), (10, 0.95)])
    assert found[8] == pytest.approx(0.18)
    assert found[9:] == pytest.approx([0.9 - least(step) for step in range(10, STEPS + 1)])


def test_ours_is_looked_at_in_every_step() -> None:
    curve, seconds = ours(PBT(population=4, interval=5), 0)
    assert (np.diff(curve) >= -1.0).all()
    assert 0.0 < curve[-1] < 1.0
    assert seconds > 0.0
