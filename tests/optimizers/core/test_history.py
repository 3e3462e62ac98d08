"""What an optimizer knows of running trials: their points in the unit cube."""

from __future__ import annotations

import numpy as np
import pytest

from optimizers.core.base import History, Observation, Pending, Problem
from optimizers.space.domains import Choice, Float
from optimizers.space.search_space import SearchSpace

SPACE = SearchSpace(x=Float(0, 10), y=Choice(["a", "b"]))
FIRST, SECOND = {"x": 2.0, "y": "a"}, {"x": 4.0, "y": "b"}


@pytest.fixture
def history() -> History:
    history = History(Problem(SPACE))
    history.apply(Pending(0, FIRST))
    history.apply(Pending(1, SECOND))
    return history


def test_points_are_those_of_the_pending_configurations_by_trial(history: History) -> None:
    points = history.pending_points()
    assert list(points) == [0, 1]
    assert np.array_equal(points[0], [0.2, 0.25])
    assert np.array_equal(points[1], [0.4, 0.75])
    assert history.pending_keys() == {SPACE.key(FIRST), SPACE.key(SECOND)}


def test_a_point_is_computed_once(history: History) -> None:
    first = history.pending_points()
    history.apply(Pending(2, {"x": 6.0, "y": "a"}))
    again = history.pending_points()
    assert list(again) == [0, 1, 2]
    assert again[0] is first[0]


def test_the_point_of_a_trial_that_ended_is_gone(history: History) -> None:
    history.pending_points()
    history.apply(Observation(0, FIRST, 1, 0.5))
    assert list(history.pending_points()) == [1]


def test_a_trial_that_continues_with_another_configuration_has_another_point(history: History) -> None:
    history.pending_points()
    history.apply(Pending(0, SECOND))
    assert np.array_equal(history.pending_points()[0], [0.4, 0.75])
