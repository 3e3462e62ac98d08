"""Tuples and lists as values of choices: the very value comes back, whatever it travelled through."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.protocol.messages import Assign, decode_to_worker, encode
from maggy_like.storage.journal.records import from_records, to_records
from optimizers.core.base import Observation
from optimizers.core.events import AttemptStarted, TrialCreated, from_json, to_json
from optimizers.errors import SearchSpaceError
from optimizers.space.domains import Choice, Constant, Ordinal, domain_from_json
from optimizers.space.scalars import Value, same
from optimizers.space.search_space import SearchSpace

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.text(max_size=3))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))
LAYERS = SearchSpace(layers=[(64, 64), (128,), [32, [16]], "none"])


def distinct(values: list[Value]) -> list[Value]:
    return [value for n, value in enumerate(values) if not any(same(value, earlier) for earlier in values[:n])]


@given(st.lists(VALUES, min_size=1, max_size=5).map(distinct))
def test_the_very_choice_comes_back(values: list[Value]) -> None:
    domain = Choice(values)
    assert repr(domain_from_json(json.loads(json.dumps(domain.to_json())))) == repr(domain)
    for value in values:
        assert repr(domain.from_unit(domain.to_unit(value))) == repr(value)
        assert repr(domain.normalize(json.loads(json.dumps(value)))) == repr(value)  # JSON makes lists of tuples


@given(st.dictionaries(st.text(min_size=1, max_size=3), VALUES, max_size=3))
def test_configurations_travel_exactly(config: dict[str, Value]) -> None:
    events = (TrialCreated(0, config, 0), AttemptStarted(0, 1, 0, 9, 0.0, config))
    for event in events:
        assert repr(from_json(to_json(event))) == repr(event)
    order = Assign(0, 1, config, 9, (), None)
    assert repr(decode_to_worker(encode(order))) == repr(order)
    seen = Observation(0, config, 1, 0.5)
    assert repr(from_records(to_records(((seen,),)))) == repr(((seen,),))


def test_the_value_of_a_choice_cannot_be_changed() -> None:
    drawn = LAYERS.from_unit([0.6])
    assert drawn == {"layers": [32, [16]]}
    drawn["layers"][1].append(3)
    assert LAYERS.from_unit([0.6]) == {"layers": [32, [16]]}


def test_lists_and_tuples_in_other_places() -> None:
    assert Ordinal([(1,), (1, 2), (1, 2, 3)], prior=[1, 2]).prior == (1, 2)
    assert Constant((3, 3)).normalize([3, 3]) == (3, 3)
    space = SearchSpace(layers=Choice([(64, 64), (128,)]), rate=Choice([1, 2], when={"layers": [(128,)]}))
    assert space.validate({"layers": [128], "rate": 2}) == {"layers": (128,), "rate": 2}
    assert len({space.domains["layers"], Choice([(64, 64), (128,)]), Choice([[1]])}) == 2
    assert len(Ordinal([[1], [2], [3]]).grid(2)) == 2
    assert SearchSpace.from_json(json.loads(json.dumps(space.to_json()))) == space
    assert all(space.allows(space.sample(np.random.default_rng(seed))) for seed in range(5))


def test_a_parameter_may_be_called_as_the_form_of_a_tuple() -> None:
    space = SearchSpace({"tuple": Choice([1, (3, 4)]), "rate": Choice([1, 2], when={"tuple": [(3, 4)]})})
    assert repr(SearchSpace.from_json(json.loads(json.dumps(space.to_json())))) == repr(space)
    config = {"tuple": (3, 4), "rate": 1}
    assert from_json(to_json(TrialCreated(0, config, 0))) == TrialCreated(0, config, 0)


def test_what_is_the_same_is_refused_twice() -> None:
    with pytest.raises(SearchSpaceError, match=r"values of Choice must differ, got \[64\] twice"):
        Choice([(64,), [64]])
    assert Choice([(1,), (True,)]).size == 2


def test_names_that_are_no_identifiers_show_in_a_repr_that_can_be_read() -> None:
    space = SearchSpace({"lambda": 1, "model.lr": [0.1, 0.2]})
    assert repr(space) == "SearchSpace({'lambda': Constant(1), 'model.lr': Choice([0.1, 0.2])})"
    assert space.validate({"model.lr": 0.2, "lambda": 1}) == {"lambda": 1, "model.lr": 0.2}
