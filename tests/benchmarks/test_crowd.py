"""The benchmark of many workers and many parameters: what it counts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.crowd import nearest, run
from benchmarks.landscapes import Landscape, dense, sparse


def test_the_nearest_other_point_counts() -> None:
    assert nearest(np.array([[0.0], [0.1], [1.0]])) == pytest.approx((0.1 + 0.1 + 0.9) / 3)
    assert nearest(np.zeros((3, 2))) == 0.0


@pytest.mark.parametrize("made", [sparse(12), dense(12)], ids=lambda made: made.name)
def test_a_search_is_the_same_again_and_its_workers_try_different_things(made: Landscape) -> None:
    first, again = (run(made, "random", 0, workers=16, n_trials=32) for _ in range(2))
    for found in (first, again):
        assert found.pop("ask_s") > 0.0
        assert 0.0 < found.pop("busy") <= 1.0
    assert first == again
    assert 0.0 < first["regret"] < first["anytime"] < 3.0
    assert first["distance"] == pytest.approx(1.0, abs=0.2)
