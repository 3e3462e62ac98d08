from __future__ import annotations

import copy
import gc
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like import Float
from optimizers import ASHA, RandomSearch, Study
from optimizers.core.events import Measured
from optimizers.core.trial import LONGEST, NOTHING, Curve, PackedCurves, PackedValues, Trial

STEPS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=6).map(sorted)
NUMBERS = st.floats(allow_nan=False)


def curve_of(steps: list[int], values: list[float]) -> Curve:
    curve = Curve()
    curve.extend(steps, values)
    return curve


@given(st.dictionaries(st.text(max_size=3), STEPS, max_size=4), st.data())
def test_curves_are_what_they_were_before(steps: dict[str, list[int]], data: st.DataObject) -> None:
    values = {name: data.draw(st.lists(NUMBERS, min_size=len(row), max_size=len(row))) for name, row in steps.items()}
    curves = {name: curve_of(row, values[name]) for name, row in steps.items()}
    packed = PackedCurves.of(curves, tuple(curves))
    assert packed == curves
    assert list(packed) == list(curves)
    assert "none of them" not in packed
    assert copy.deepcopy(packed) == pickle.loads(pickle.dumps(packed)) == curves


@given(st.dictionaries(st.text(max_size=3), NUMBERS, max_size=4))
def test_values_are_what_they_were_before(values: dict[str, float]) -> None:
    packed = PackedValues.of(values, tuple(values))
    assert packed == values
    assert dict(pickle.loads(pickle.dumps(packed))) == values
    assert repr(packed) == repr(values)
    with pytest.raises(KeyError, match="none of them"):
        packed["none of them"]


def test_what_is_not_finite_is_kept() -> None:
    packed = PackedValues.of({"a": math.inf, "b": math.nan}, ("a", "b"))
    assert packed["a"] == math.inf
    assert math.isnan(packed["b"])


def test_nothing_stays_nothing() -> None:
    with pytest.raises(TypeError, match="make a dict of them"):
        NOTHING["x"] = 1
    with pytest.raises(TypeError, match="make a dict of them"):
        NOTHING.update(x=1)
    assert not NOTHING
    assert json.dumps(Trial(0, {}).metrics) == "{}"
    assert pickle.loads(pickle.dumps(NOTHING)) is copy.deepcopy(NOTHING) is NOTHING


def study_of_one() -> tuple[Study, Trial]:
    study = Study({"x": Float(0, 1)}, ASHA(sampler=RandomSearch()), direction="min", max_budget=1000, n_trials=2)
    trial = study.ask()
    assert trial is not None
    return study, trial


def test_a_trial_at_rest_is_packed_and_goes_on_where_it_was() -> None:
    study, trial = study_of_one()
    study.report(trial, 1, 0.5)
    study.tell(trial)
    assert isinstance(trial.curves, PackedCurves)
    assert trial.curve == curve_of([1], [0.5])
    study.apply(study.started(trial, 0, 0.0))
    study.apply(Measured(trial.id, trial.attempt, "value", {"value": ([2, 3], [0.4, 0.3]), "seconds": ([3], [9.0])}))
    assert trial.curves == {"value": curve_of([1, 2, 3], [0.5, 0.4, 0.3]), "seconds": curve_of([3], [9.0])}
    assert trial.newest == {"value": 0.3, "seconds": 9.0}


def test_long_curves_are_not_copied_at_each_look() -> None:
    study, trial = study_of_one()
    for step in range(1, LONGEST + 2):
        study.report(trial, step, 0.5)
    study.tell(trial)
    assert trial.curve is trial.curve


def test_the_garbage_collector_looks_at_nothing_that_a_trial_leaves() -> None:
    study, trial = study_of_one()
    study.report(trial, 1, 0.5)
    study.tell(trial)
    [observation] = study.take_updates()[1:]
    kept = trial, trial.curves, trial.config, observation, observation.metrics
    gc.collect()
    assert not any(map(gc.is_tracked, kept))
