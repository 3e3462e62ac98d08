"""Attributes: what a function returns that is no number stays with the trial, in the table and in exports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand import Hand
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.protocol.values import MAX_ATTRIBUTES, MAX_NAME, MAX_SIZE, ReportError, as_attributes
from maggy_like.results.result import Result
from maggy_like.worker.child.process import Returned, read_value
from optimizers.core.events import AttemptEnded, from_json, to_json
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace


@pytest.mark.parametrize(
    ("returned", "objective", "read"),
    [
        ({"accuracy": 0.9, "note": "hello"}, None, (0.9, {"accuracy": 0.9}, {"note": "hello"})),
        ({"accuracy": 0.9, "ok": True}, None, (0.9, {"accuracy": 0.9}, {"ok": True})),
        ({"accuracy": 0.9, "ok": np.True_}, None, (0.9, {"accuracy": 0.9}, {"ok": True})),
        ({"success": True, "note": "x"}, None, (1.0, {"success": 1.0}, {"note": "x"})),
        ({"loss": np.float32(0.5), "layers": (64, 32)}, "loss", (0.5, {"loss": 0.5}, {"layers": [64, 32]})),
        ({"note": "the last report stands"}, "loss", (None, {}, {"note": "the last report stands"})),
        ({"accuracy": 0.5, "best_epoch": None}, "accuracy", (0.5, {"accuracy": 0.5}, {"best_epoch": None})),
        (0.5, None, (0.5, {}, {})),
        (None, None, (None, {}, {})),
    ],
)
def test_numbers_are_metrics_and_the_rest_attributes(returned: Any, objective: str | None, read: Any) -> None:
    assert read_value(returned, objective) == Returned(*read)


@pytest.mark.parametrize(
    ("returned", "objective", "error"),
    [
        ({"accuracy": "0.9", "note": 1}, "accuracy", "train_fn's 'accuracy' must be a number, got '0.9' of type str"),
        ({"accuracy": "0.9", "epoch": 3}, None, "the name of the optimised metric"),  # and not: the epoch, silently
        ({"accuracy": np.ones(3), "epoch": 3}, None, "the name of the optimised metric"),
        (
            {"note": "hello"},
            None,
            "train_fn must return a number, got none: {'note': 'hello'}; return the objective as a number",
        ),
        ({"loss": 1.0, "note": "x"}, "accuracy", "the metric 'accuracy' must be given, got loss"),
        (
            "hello",
            None,
            "train_fn's value must be a number, got 'hello' of type str; return a number, a dict with a number",
        ),
    ],
)
def test_the_objective_must_be_a_number(returned: Any, objective: str | None, error: str) -> None:
    with pytest.raises(ReportError) as raised:
        read_value(returned, objective)
    assert error in str(raised.value)


def test_where_the_objective_was_reported_a_dict_may_go_without_it() -> None:
    returned = {"test_loss": 0.5, "note": "x"}
    assert read_value(returned, "accuracy", is_reported=True) == Returned(None, {"test_loss": 0.5}, {"note": "x"})
    assert read_value({"accuracy": 0.5}, "accuracy", is_reported=True) == Returned(0.5, {"accuracy": 0.5}, {})


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text(st.characters()) | st.integers(), ANYTHING, max_size=4))
def test_whatever_is_returned_can_be_written_and_is_kept_unchanged_a_second_time(values: dict[Any, Any]) -> None:
    attributes = as_attributes(values)
    assert as_attributes(attributes) == attributes
    ended = AttemptEnded(0, 1, TrialState.COMPLETED, 1.5, attributes=attributes)
    assert from_json(to_json(ended)) == ended


def test_attributes_are_bounded() -> None:
    assert as_attributes({"it": Unprintable()})["it"].startswith("<Unprintable instance at")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    large = {"text": "x" * 10**6, "list": list(range(10**6)), "deep": deep, "int": 10**5000, "n" * 999: math.nan}
    attributes = as_attributes(large)
    assert all(len(str(value)) <= MAX_SIZE and len(name) <= MAX_NAME for name, value in attributes.items())
    assert attributes["text"].startswith("xxx")
    assert attributes["list"].startswith("[0, 1, 2")
    assert len(as_attributes({str(number): number for number in range(1000)})) == MAX_ATTRIBUTES


def test_attributes_are_in_the_journal_and_in_the_trial_and_bounded_by_the_driver() -> None:
    hand = Hand(n_trials=1).start()
    worker = hand.join(0)
    hand.finish(worker, 0.5, attributes={"note": "hello", "log": "x" * 10**6})
    assert isinstance(hand.events[-1], AttemptEnded)
    trial = hand.study.trials[0]
    assert trial.attributes == hand.events[-1].attributes
    assert trial.attributes["note"] == "hello"
    assert len(trial.attributes["log"]) <= MAX_SIZE
    again = Study({"x": Float(0, 1)}, hand.study.optimizer, max_budget=9, n_trials=1)
    for event in hand.events:
        again.apply(from_json(to_json(event)))
    assert again.trials[0].attributes == trial.attributes


@pytest.fixture
def result(tmp_path: Path) -> Result:
    hand = Hand(n_trials=2, points=[{"x": 0.25}, {"x": 0.5}]).start()
    worker = hand.join(0)
    attributes = {"note": "hello", "x": "of the function", "step": [1], "loss": "low"}
    hand.finish(worker, 0.5, metrics={"loss": 0.5}, attributes=attributes)
    hand.finish(worker, 0.75)
    trials = hand.study.trials
    return Result(trials, trials[1], "loss", "max", "completed", 1.0, tmp_path, SearchSpace({"x": Float(0, 1)}))


def test_the_table_has_a_column_for_each_attribute_beside_those_of_the_parameters(result: Result) -> None:
    table = result.to_pandas()
    assert list(table["x"]) == [0.25, 0.5]
    assert table["note"][0] == "hello"
    assert table["attribute_x"][0] == "of the function"
    assert table["attribute_step"][0] == [1]
    assert table["note"].isna().tolist() == [False, True]


def test_attributes_are_exported_to_optuna_as_user_attributes(result: Result) -> None:
    pytest.importorskip("optuna")
    attributes = result.to_optuna().trials[0].user_attrs
    assert attributes["note"] == "hello"
    assert attributes["x"] == "of the function"
    assert attributes["attribute_step"] == [1]
    assert (attributes["loss"], attributes["attribute_loss"]) == (0.5, "low")
