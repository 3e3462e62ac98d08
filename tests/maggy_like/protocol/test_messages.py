from __future__ import annotations

import math
import posixpath
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hand import Hand
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import (
    Beat,
    Checkpointed,
    Finished,
    Logged,
    Ready,
    Reported,
    awaits_answer,
    decode_to_driver,
    encode,
)
from maggy_like.protocol.state_names import SHARDED, WHOLE, StateName, check_owner, parse_name, state_url
from maggy_like.protocol.values import MAX_ATTRIBUTES, MAX_NAME, MAX_SIZE, ReportError, as_attributes
from maggy_like.results.result import Result
from maggy_like.worker.child.returned import Returned, read_value
from optimizers.core.events import AttemptEnded, from_json, to_json
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace


def test_ends_and_awaited_reports_wait_for_an_answer() -> None:
    awaited = [Ready(), Finished(0, 1, "returned"), Reported(0, 1, "loss", {}, awaiting=True)]
    others = [Beat(), Logged(0, 1, ["a line"]), Reported(0, 1, "loss", {})]
    assert [awaits_answer(message) for message in awaited] == [True] * 3
    assert [awaits_answer(message) for message in others] == [False] * 3


# -- names of checkpoints: only the strict form passes, at every border --------------------------


NUMBERS = st.integers(1, 10**12)
NAMES = st.builds(StateName, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([WHOLE, SHARDED]))
PARTS = st.sampled_from([
    "00003", "3", "/", "//", "..", ".", "2", "-", "1", ".pkl", ".dcp", "\n", "\0", "\u0663", "file://", "s3:", "~",
    "%2e",
])  # fmt: skip
FOREIGN = [
    "", "00003", "00003/", "/00003/2-1.pkl", "../00003/2-1.pkl", "00003/../2-1.pkl", "00003/2-1.pkl/..",
    "00003//2-1.pkl", "00003/2-1.pkl\n", "00003/02-1.pkl", "3/2-1.pkl", "000003/2-1.pkl", "00003/2-0.pkl",
    "00003/2-1.pkl.part", "file:///tmp/00003/2-1.pkl", "memory://00003/2-1.pkl", "00003/2-1.PKL", "00003/2-1",
    "returned.pkl", ".run", "0000\u0663/2-1.pkl",
]  # fmt: skip


@given(NAMES)
def test_what_is_written_is_read_back(name: StateName) -> None:
    assert parse_name(str(name)) == name
    check_owner(str(name), name.trial, name.attempt)


@given(st.one_of(st.text(), st.lists(PARTS, max_size=12).map("".join)))
def test_what_is_read_has_that_one_name_and_stays_in_the_store(text: str) -> None:
    try:
        name = parse_name(text)
    except ValueError:
        return
    assert str(name) == text
    assert posixpath.normpath(f"/runs/store/{text}") == f"/runs/store/{text}"


@pytest.mark.parametrize("text", FOREIGN)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the name of a checkpoint must be like '00003/2-1\.pkl'"):
        parse_name(text)
    with pytest.raises(ValueError, match="the name of a checkpoint must be like"):
        state_url("file:///store", text)


@pytest.mark.parametrize("name", [*FOREIGN, "00004/2-1.pkl", "00003/1-1.pkl", "00003/3-1.dcp"])
def test_no_message_names_what_its_attempt_has_not_saved(name: str) -> None:
    """As a worker would tell of it that makes its frames itself."""
    honest = encode(Checkpointed(3, 2, 1, "00003/2-1.pkl"))
    frame = msgspec.msgpack.encode({**msgspec.msgpack.decode(honest), "name": name})
    with pytest.raises(msgspec.DecodeError, match=r"the name of a checkpoint must|must belong to attempt 2 of trial 3"):
        decode_to_driver(frame)
    assert decode_to_driver(honest) == Checkpointed(3, 2, 1, "00003/2-1.pkl")


# -- what phases and endings of a run mean --------------------------------------------------------


@pytest.mark.parametrize("ending", Ending)
def test_endings(ending: Ending) -> None:
    assert ending.is_over == (ending != "running")
    assert ending.is_planned == (ending in {"completed", "timeout", "target"})
    assert ending.is_cut_short == (ending in {"timeout", "stopped", "interrupted", "cancelled", "killed"})


def test_a_phase_is_not_over() -> None:
    assert not any(phase.is_over for phase in Phase)


# -- attributes: what a function returns that is no number stays with the trial, in the table and in exports


@pytest.mark.parametrize(
    ("returned", "objective", "read"),
    [
        ({"accuracy": 0.9, "note": "hello"}, None, (0.9, {"accuracy": 0.9}, {"note": "hello"})),
        ({"accuracy": 0.9, "ok": True}, None, (0.9, {"accuracy": 0.9}, {"ok": True})),
        ({"accuracy": 0.9, "ok": np.True_}, None, (0.9, {"accuracy": 0.9}, {"ok": True})),
        ({"success": True, "note": "x"}, None, (1.0, {"success": 1.0}, {"note": "x"})),
        ({"loss": 0.5, "status": "ok"}, None, (0.5, {"loss": 0.5}, {"status": "ok"})),
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
        ({"accuracy": "0.9", "epoch": 3}, None, "the name of the optimized metric"),  # and not: the epoch, silently
        ({"accuracy": np.ones(3), "epoch": 3}, None, "the name of the optimized metric"),
        (
            {"note": "hello"},
            None,
            "train_fn must return a number, got none: {'note': 'hello'}; return the objective as a number",
        ),
        ({"loss": 1.0, "note": "x"}, "accuracy", "the metric 'accuracy' must be given, got loss"),
        ({"loss": -5.0, "status": "fail"}, "loss", "must raise an exception in a trial that fails, got status='fail'"),
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
