from __future__ import annotations

import copy
import gc
import json
import math
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like import Float
from optimizers import ASHA, RandomSearch, Study
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Event,
    Measured,
    TrialCreated,
    from_json,
    to_json,
)
from optimizers.core.trial import (
    LONGEST,
    NOTHING,
    Curve,
    Failure,
    FailureKind,
    PackedCurves,
    PackedValues,
    Trial,
    TrialState,
)

# Words that a lenient reader could take for something else than text.
TEXT = st.sampled_from(["nan", "inf", "-inf", "null", "true", "1", "1.0", "", "\n", '"', "\u2028"]) | st.text()
FINITE = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**53)
STEPS = st.integers(-(2**63), 2**63 - 1)
CONFIGS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | FINITE | TEXT, max_size=5)
COLUMNS = st.lists(st.tuples(STEPS, st.floats()), max_size=4).map(
    lambda rows: ([step for step, _ in rows], [value for _, value in rows])
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(TrialCreated, COUNTS, CONFIGS, st.none() | COUNTS, st.none() | COUNTS),
    st.builds(AttemptStarted, COUNTS, COUNTS, COUNTS, COUNTS, FINITE),
    st.builds(Measured, COUNTS, COUNTS, TEXT, st.dictionaries(TEXT, COLUMNS, max_size=3)),
    st.builds(CheckpointSaved, COUNTS, COUNTS, STEPS, TEXT),
    st.builds(
        AttemptEnded,
        COUNTS,
        COUNTS,
        st.sampled_from(TrialState),
        FINITE,
        st.none() | st.floats(),
        st.dictionaries(TEXT, st.floats(), max_size=3),
        st.none() | st.builds(Failure, st.sampled_from(FailureKind), TEXT, TEXT),
    ),
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


@settings(max_examples=examples(150))
@given(EVENTS)
def test_an_event_is_one_line_of_strict_json_that_reads_back_exactly(event: Event) -> None:
    line = to_json(event)
    assert b"\n" not in line
    assert isinstance(json.loads(line, parse_constant=refuse), dict)
    # By repr, since NaN equals nothing, and 1 equals 1.0 and True.
    assert repr(from_json(line)) == repr(event)


def test_numbers_that_json_lacks_are_spelled_out() -> None:
    measured = json.loads(to_json(Measured(0, 1, "loss", {"loss": ([1, 2, 3], [math.nan, 0.5, -math.inf])})))
    assert measured["columns"] == {"loss": [[1, 2, 3], ["nan", 0.5, "-inf"]]}
    ended = json.loads(to_json(AttemptEnded(0, 1, TrialState.COMPLETED, 2.0, math.inf, {"time": math.nan})))
    assert (ended["value"], ended["metrics"]) == ("inf", {"time": "nan"})


def test_writing_changes_nothing_in_the_event() -> None:
    event = Measured(0, 1, "loss", {"loss": ([1], [math.inf])})
    to_json(event)
    assert event == Measured(0, 1, "loss", {"loss": ([1], [math.inf])})


def test_what_is_not_said_is_not_written() -> None:
    ended = json.loads(to_json(AttemptEnded(3, 2, TrialState.PAUSED, 1.5)))
    assert ended == {"type": "ended", "trial": 3, "attempt": 2, "state": "paused", "time": 1.5}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"type":"created","trial":0,"con', msgspec.DecodeError),
        (b'{"type":"forgotten","trial":0}', msgspec.ValidationError),
        (b'{"type":"created","trial":0}', msgspec.ValidationError),
        (b'{"type":"ended","trial":0,"attempt":1,"state":"asleep","time":0.0}', msgspec.ValidationError),
        (b'{"type":"ended","trial":0,"attempt":1,"state":"paused","time":0.0,"value":"much"}', msgspec.ValidationError),
    ],
)
def test_what_is_no_event_is_refused(line: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        from_json(line)


# -- what each kind of failure means --------------------------------------------------------------


BLAMELESS = {"store", "stage_lost", "node_lost", "node_left", "driver_lost"}


@pytest.mark.parametrize("kind", FailureKind)
def test_what_it_means(kind: FailureKind) -> None:
    assert kind.counts == (kind not in BLAMELESS)
    assert kind.is_fault == (kind not in BLAMELESS | {"worker_lost"})
    assert kind.is_final == (kind in {"report", "no_value"})
    assert kind.is_stage_loss == (kind in {"stage_lost", "node_lost"})
    assert kind.is_drivers == (kind in {"worker_lost", "stage_lost", "node_lost", "node_left", "driver_lost"})


# -- packed ---------------------------------------------------------------------------------------


PACKED_STEPS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=6).map(sorted)
NUMBERS = st.floats(allow_nan=False)


def curve_of(steps: list[int], values: list[float]) -> Curve:
    curve = Curve()
    curve.extend(steps, values)
    return curve


@given(st.dictionaries(st.text(max_size=3), PACKED_STEPS, max_size=4), st.data())
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


@pytest.mark.slow
def test_the_garbage_collector_looks_at_nothing_that_a_trial_leaves() -> None:
    study, trial = study_of_one()
    study.report(trial, 1, 0.5)
    study.tell(trial)
    [observation] = study.history.observations
    kept = trial, trial.curves, trial.config, observation, observation.metrics
    gc.collect()
    assert not any(map(gc.is_tracked, kept))
