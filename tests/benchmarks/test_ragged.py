from __future__ import annotations

import numpy as np
import pytest

from benchmarks.landscapes import landscape
from benchmarks.ragged import table_of


def test_every_configuration_gets_one_of_the_curves_that_were_drawn() -> None:
    smooth = landscape("two")
    ragged = table_of("ragged-two", smooth, rows=20)
    assert ragged.max_budget == smooth.max_budget
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(200):
        config = smooth.space.sample(rng)
        steps = [ragged(config, step) for step in range(1, ragged.max_budget + 1)]
        assert [seconds for _, seconds in steps] == pytest.approx([1.0] * ragged.max_budget)
        ends.append(steps[-1][0])
    assert 1 < len(set(ends)) <= 20
    known = {float(row[-1]) for row in ragged.losses}
    assert set(ends) <= known
    assert ragged.regret(min(known)) == 0.0


def test_what_is_drawn_depends_on_the_name_alone() -> None:
    smooth = landscape("two")
    ragged = table_of("ragged-two", smooth, rows=20)
    again = table_of("ragged-two", smooth, rows=20)
    np.testing.assert_array_equal(ragged.losses, again.losses)
    assert table_of("another", smooth, rows=20).losses[0, -1] != ragged.losses[0, -1]
