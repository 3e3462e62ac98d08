from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column
from maggy_like.ml.featurizer import LayerOutput
from maggy_like.ml.inference.predictor import (
    Kind,
    Kinds,
    Predictor,
    ShippedNetwork,
    device_index,
    fault,
    read_ahead,
    usable_rows,
)

X = Column("x", (2,), "float32")


def results(network: nn.Module, inputs: tuple[Column, ...], *arrays: pa.Array, **options: Any) -> list[dict[str, Any]]:
    """What a Predictor gives for one batch."""
    kind: Kinds = options.pop("kind", "other")
    predictor = Predictor(ShippedNetwork.of(network), inputs, kind, **options)
    return [row for batch in predictor(iter([arrays])) for row in batch.to_pylist()]


def vectors(*arguments: Any, **options: Any) -> list[list[float] | None]:
    return [row["vector"] for row in results(*arguments, **options)]


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("classes", [0.0, 2.0], {"label": 1, "score": 0.8808, "vector": [0.1192, 0.8808]}),
        ("binary", [2.0], {"label": 1, "score": 0.8808, "vector": [0.1192, 0.8808]}),
        ("probability", [0.25], {"label": 0, "score": 0.75, "vector": [0.75, 0.25]}),
        ("values", [2.5], {"label": 2.5, "score": None, "vector": [2.5]}),
        ("values", [2.5, 3.5], {"label": None, "score": None, "vector": [2.5, 3.5]}),
        ("other", [2.5], {"label": None, "score": None, "vector": [2.5]}),
    ],
)
def test_results_by_kind(kind: Kind, row: list[float], expected: Mapping[str, Any]) -> None:
    (found,) = results(nn.Identity(), (Column("x", (-1,), "float32"),), pa.array([row]), kind=kind)
    assert found.pop("error") is None
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value, abs=1e-4)), name


class Twice(nn.Module):
    """Two outputs, the second of which is not finite where a number is 0."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.log().sum(1)


def test_several_outputs_are_computed_together() -> None:
    kinds: dict[str, Kind] = {"class": "classes", "price": "values"}
    rows = pa.array([[1.0, 2.0], None, [0.0, 1.0], [1.0, 1.0]])
    first, null, infinite, last = results(Twice(), (X,), rows, kind=kinds, fields=("label", "error"))
    assert first["class"] == {"label": 1, "error": None}
    assert first["price"] == {"label": pytest.approx(math.log(2)), "error": None}
    assert last == {"class": {"label": 0, "error": None}, "price": {"label": 0, "error": None}}
    assert {name: it["error"] for name, it in null.items()} == dict.fromkeys(kinds, "column 'x' is null")
    assert infinite["class"] == {"label": None, "error": "the network gave a number that is not finite"}
    with pytest.raises(DataError, match=r"must give 3 outputs, one for each kind \(class, price, size\), got 2"):
        results(Twice(), (X,), rows, kind=kinds | {"size": "values"})


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_rows_that_cannot_be_used_stay_in_their_places(batch_size: int) -> None:
    rows = pa.array([[1.0, 2.0], None, [3.0], [4.0, None], [5.0, 6.0], [float("nan"), 0.0], [7.0, 8.0]])
    found = results(Doubled(), (X,), rows, batch_size=batch_size)
    assert [row["vector"] for row in found] == [[2, 4], None, None, None, [10, 12], None, [14, 16]]
    assert [row["error"] for row in found] == [
        None,
        "column 'x' is null",
        "column 'x' has 1 elements where 2 are expected",
        "column 'x' holds a null",
        None,
        "the network gave a number that is not finite",
        None,
    ]


def test_batches_of_no_rows_and_of_none_that_can_be_used() -> None:
    assert results(Doubled(), (X,), pa.array([], pa.list_(pa.float32()))) == []
    assert vectors(Doubled(), (X,), pa.nulls(2, pa.list_(pa.float32()))) == [None, None]


def test_rows_on_which_the_network_fails_are_marked_alone() -> None:
    network = nn.Sequential(nn.Embedding(3, 2), nn.Flatten())
    found = results(network, (Column("item", (), "int64"),), pa.array([0, 7, 1, 2, -1, 2]))
    assert [row["vector"] is not None for row in found] == [True, False, True, True, False, True]
    assert found[1]["error"].startswith("the network failed: IndexError")
    assert found[3]["vector"] == found[5]["vector"]


def test_values_that_the_type_cannot_hold_are_marked_alone() -> None:
    found = results(nn.Identity(), (Column("n", (), "int64"),), pa.array([1.0, 2.5, 3.0]))
    assert [row["vector"] for row in found] == [[1], None, [3]]
    assert "column 'n'" in found[1]["error"]


def test_arrays_of_open_length_are_computed_apart() -> None:
    class Summed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x.sum(1), torch.full((len(x),), float(x.shape[1]))], 1)

    rows = pa.array([[1.0], [1.0, 2.0], None, [3.0], [4.0, 5.0], []])
    found = vectors(Summed(), (Column("x", (-1,), "float32"),), rows)
    assert found == [[1, 1], [3, 2], None, [3, 1], [9, 2], [0, 0]]


@pytest.mark.slow
def test_long_vectors_are_filled_up_a_few_at_a_time() -> None:
    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[:, -1], torch.full((len(x),), float(len(x)))], 1)

    length = 1 << 20
    kind = pa.struct(
        {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    )
    made = [{"type": 0, "size": length, "indices": [length - 1], "values": [float(row)]} for row in range(40)]
    rows = pa.array([*made, None, {"type": 1, "values": [1.0]}], kind)
    found = vectors(Counted(), (Column("x", (length,), "float32"),), rows)
    assert found == [[row, 16 if row < 32 else 8] for row in range(40)] + [None, None]
    assert vectors(Counted(), (Column("x", (-1,), "float32"),), rows)[-1] == [1, 1]


def test_a_table_without_any_prediction_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    results(Doubled(), (X,), pa.array([[1.0, 2.0, 3.0]] * 5), batch_size=2)
    (told,) = caplog.messages
    assert told.startswith(
        "none of 2 rows has a prediction; the first error is: column 'x' has 3 elements where 2 are expected"
    )
    results(Doubled(), (X,), pa.array([[1.0, 2.0], [1.0]]))
    assert len(caplog.messages) == 1


def test_bytes_are_decoded_and_those_that_cannot_be_are_marked() -> None:
    def decode(content: bytes) -> np.ndarray[Any, Any]:
        if content == b"torn":
            raise OSError("cannot identify image")
        return np.frombuffer(content, np.uint8)

    found = results(
        nn.Identity(),
        (Column("image", None, "uint8"),),
        pa.array([b"ab", b"torn", b"abc", b"cd"]),
        decode={"image": decode},
    )
    assert [row["vector"] for row in found] == [[97, 98], None, [97, 98, 99], [99, 100]]
    assert found[1]["error"] == "column 'image' cannot be decoded: OSError: cannot identify image"


def test_several_inputs_and_outputs() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + n[:, None], n

    inputs = (X, Column("n", (), "int64"))
    rows = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), pa.array([10, None, 30])
    assert vectors(Both(), inputs, *rows) == [[11, 12, 10], None, [35, 36, 30]]
    with pytest.raises(DataError, match="must give one output of kind 'values', got 2"):
        results(Both(), inputs, *rows, kind="values")


def test_fractions_come_in_the_precision_of_the_network() -> None:
    assert vectors(nn.Linear(2, 1, dtype=torch.float64), (X,), pa.array([[1.0, 2.0]]))[0] is not None


def test_results_have_the_precision_of_the_network() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    row = [1_764_000_001.0, 1e300]
    for dtype in ("float64", "float32"):  # whatever the caller says, as the featurizer's columns do
        (found,) = results(Same(), (Column("x", (2,), dtype),), pa.array([row]), kind="values")
        assert found == {"label": None, "score": None, "vector": row, "error": None}


class Identifier(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x),), 20_000_001)


def test_integers_that_single_precision_cannot_hold_are_exact() -> None:
    (found,) = results(Identifier(), (X,), pa.array([[1.0, 2.0]]), kind="values")
    assert found["label"] == 20_000_001


def test_an_output_without_a_row_for_each_is_refused() -> None:
    with pytest.raises(DataError, match=r"one row for each of 2 rows, got \(4,\)"):
        results(nn.Flatten(0, -1), (X,), pa.array([[1.0, 2.0], [3.0, 4.0]]))


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(DataError, match="column 'x' must be an array of 1 dimensions for the network, got a number"):
        results(Doubled(), (Column("x", (-1,), "float32"),), pa.array([1.0]))
    with pytest.raises(DataError, match="column 'x' must be an array of 1 dimensions for the network, got a number"):
        results(Doubled(), (X,), pa.array([1.0]))
    assert vectors(Doubled(), (Column("x", (1,), "float32"),), pa.array([1.0])) == [[2.0]]
    with pytest.raises(DataError, match="column 'x'"):
        results(Doubled(), (X,), pa.array(["a"]))


def test_fields_that_are_not_asked_for_are_not_made() -> None:
    assert results(Doubled(), (X,), pa.array([[1.0, 2.0]]), fields=("error", "vector")) == [
        {"error": None, "vector": [2, 4]}
    ]


class Counted(nn.Module):
    made = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        Counted.made += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + float(self.training)


def test_a_process_loads_a_network_once_and_in_evaluation_mode() -> None:
    shipped = ShippedNetwork.of(Counted())
    before = Counted.made
    for _ in range(3):
        predictor = Predictor(shipped, (X,), "other")
        (batch,) = predictor(iter([(pa.array([[1.0, 2.0]]),)]))
        assert batch.to_pylist()[0]["vector"] == [1, 2]
    assert Counted.made == before + 1


def test_a_network_that_cannot_be_pickled_is_refused() -> None:
    network = nn.Identity()
    network.lock = threading.Lock()
    with pytest.raises(ConfigError, match="Identity cannot be sent"):
        ShippedNetwork.of(network)


def test_device_index_counts_as_cuda_does() -> None:
    assert [device_index("3", visible) for visible in (None, "", "2,3", "0,1,2,3")] == [3, 3, 1, 3]


# -- read ahead -----------------------------------------------------------------------------------


def test_read_ahead_keeps_the_order() -> None:
    assert list(read_ahead(iter(range(100)), ahead=3)) == list(range(100))
    assert list(read_ahead(iter(()))) == []


def test_read_ahead_fetches_while_the_caller_works() -> None:
    is_asked, is_computed = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 0
        is_asked.set()
        assert is_computed.wait(60)  # the caller works on the item before
        yield 1

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert is_asked.wait(60)
    is_computed.set()
    assert list(ahead) == [1]


def test_read_ahead_fetches_no_more_than_asked_for() -> None:
    asked: list[int] = []
    waits = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for item in range(10):
            asked.append(item)
            waits.release()
            yield item

    ahead = read_ahead(items(), ahead=2)
    assert waits.acquire(timeout=60)
    assert waits.acquire(timeout=60)
    assert asked == [0, 1]
    assert next(ahead) == 0
    assert waits.acquire(timeout=60)
    assert asked == [0, 1, 2]


def test_read_ahead_raises_what_the_iterator_raised_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise ValueError("torn")

    ahead = read_ahead(items())
    assert next(ahead) == 0
    with pytest.raises(ValueError, match="torn"):
        next(ahead)


def test_read_ahead_ends_its_thread_when_it_is_left() -> None:
    before = set(threading.enumerate())
    ahead = read_ahead(iter(range(1000)))
    next(ahead)
    (thread,) = set(threading.enumerate()) - before
    ahead.close()  # type: ignore[attr-defined]  # it is a generator
    thread.join(60)
    assert not thread.is_alive()


# -- rows -----------------------------------------------------------------------------------------


NUMBER = st.none() | st.floats(-1, 1, width=32)
PAIRS = Column("x", (2, 2), "float32")


def filled(value: object, shape: tuple[int, ...]) -> bool:
    """What usable_rows is to tell, value by value."""
    if value is None:
        return False
    if not shape:
        return True
    assert isinstance(value, list)
    return len(value) == shape[0] and all(filled(it, shape[1:]) for it in value)


@given(
    st.lists(st.none() | st.lists(st.none() | st.lists(NUMBER, max_size=3), max_size=3), max_size=8), st.integers(0, 3)
)
def test_usable_rows_are_those_of_the_shape_without_nulls(rows: list[object], skipped: int) -> None:
    array = pa.array(rows, pa.list_(pa.list_(pa.float32()))).slice(skipped)
    usable = usable_rows(array, PAIRS)
    assert usable.tolist() == [filled(it, (2, 2)) for it in rows[skipped:]]
    assert [fault(it, PAIRS) is None for it in array] == usable.tolist()


def test_usable_rows_of_numbers_open_lengths_and_flat_arrays() -> None:
    assert usable_rows(pa.array([1, None]), Column("x", (), "int64")).tolist() == [True, False]
    arrays = pa.array([[1.0], [1.0, 2.0, 3.0, 4.0], [None], None, []])
    assert usable_rows(arrays, Column("x", (-1,), "float32")).tolist() == [True, True, False, False, True]
    assert usable_rows(arrays, PAIRS).tolist() == [False, True, False, False, False]


def test_usable_rows_of_bytes() -> None:
    images = pa.array([np.zeros(12, np.uint8).tobytes(), b"abc", None])
    assert usable_rows(images, Column("x", (3, 2, 2), "uint8")).tolist() == [True, False, False]
    assert usable_rows(images, Column("x", None, "uint8")).tolist() == [True, True, False]


def test_usable_rows_of_vectors() -> None:
    kind = pa.struct(
        {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    )
    dense, long = {"type": 1, "values": [1.0, 2.0]}, {"type": 0, "size": 3, "indices": [0, 2], "values": [1.0, 2.0]}
    vectors = pa.array([dense, long, None, {"type": 0, "size": 2, "indices": [], "values": []}], kind)
    column, open_ended = Column("x", (2,), "float32"), Column("x", (-1,), "float32")
    assert usable_rows(vectors, column).tolist() == [True, False, False, True]
    assert usable_rows(vectors, open_ended).tolist() == [True, True, False, True]
    assert [fault(it, column) for it in vectors] == [
        None,
        "column 'x' has 3 elements where 2 are expected",
        "column 'x' is null",
        None,
    ]


@pytest.mark.parametrize(
    ("value", "column", "told"),
    [
        (pa.scalar(None, pa.list_(pa.float32())), Column("x", (2,), "float32"), "column 'x' is null"),
        (pa.scalar([1.0, None]), Column("x", (2,), "float32"), "column 'x' holds a null"),
        (pa.scalar([1.0]), Column("x", (2,), "float32"), "column 'x' has 1 elements where 2 are expected"),
        (
            pa.scalar(b"abc"),
            Column("x", (2,), "uint8"),
            "column 'x' has 3 bytes, which do not fill the shape (2,) of uint8",
        ),
    ],
)
def test_fault_says_why(value: pa.Scalar, column: Column, told: str) -> None:
    assert fault(value, column) == told


# -- one layer of a network --------------------------------------------------------------------------


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("is not to be computed")


class Careful(nn.Module):
    """A network that handles errors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(3, 2), Failing(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            made: torch.Tensor = self.head(self.body(x))
        except Exception:
            return x
        return made


def test_a_layer_gives_its_output_and_what_follows_is_not_computed() -> None:
    network, x = Careful(), torch.ones(4, 3)
    assert torch.equal(LayerOutput(network, "body")(x), network.body(x))
    assert not network.body._forward_hooks  # the network is as it was


def test_a_layer_that_is_not_there_or_not_called_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a module of the network, got 'bodi' \(did you mean 'body'\?\); use one of body, head, unused",
    ):
        LayerOutput(Careful(), "bodi")
    with pytest.raises(ConfigError, match="a module that the network calls, got 'unused'"):
        LayerOutput(Careful(), "unused")(torch.ones(4, 3))
