"""What of a training function cannot be sent to the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.core.broadcast import Broadcast

from maggy_like import Float, lagom, run
from maggy_like.errors import TrainFunctionError
from maggy_like.train_function.pickling import LARGE, pickle_train_fn, size_hints


def train(x: float, data: Any) -> float:
    return float(x * data.value[0])


def test_a_broadcast_variable_is_refused_since_no_trial_could_load_it() -> None:
    table: Any = Broadcast.__new__(Broadcast)
    with pytest.raises(
        TrainFunctionError,
        match=r"train uses the argument 'data' of type Broadcast, which cannot be sent .*; pass its value$",
    ):
        pickle_train_fn(partial(train, data=table))


class DataFrame:
    """What stands for a table of Spark Connect, which can be pickled and not be read."""


def test_a_table_of_spark_is_refused_with_what_to_send_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFrame, "__module__", "pyspark.sql.connect.dataframe")
    with pytest.raises(
        TrainFunctionError,
        match=r"uses the argument 'data' of type DataFrame, .*: Spark's sessions and tables exist only on the driver; "
        r"let the function refer to the rows themselves \(df\.toPandas\(\)\), or write them",
    ):
        pickle_train_fn(partial(train, data=DataFrame()))


def _around(data: Any) -> Callable[[float], float]:
    def learn(x: float) -> float:
        return x * len(data) + (learn(x) if x > 1 else 0)

    return learn


class Learner:
    def __init__(self, data: Any) -> None:
        self.data = data

    def learn(self, x: float) -> float:
        return x * len(self.data)


def _through_a_helper(data: Any) -> Callable[[float], float]:
    helper = _around(data)
    return lambda x: helper(x)


def _itself(data: Any) -> Callable[[float], float]:
    def again(x: float) -> float:
        return again(x - 1) if x > 1 else len(data)

    return again


@pytest.mark.parametrize(
    ("around", "what"),
    [
        (lambda data: Learner(data).learn, "learn uses the attribute 'data'"),
        (lambda data: partial(Learner(data).learn), "learn uses the attribute 'data'"),
        (lambda data: partial(partial(train, data=data)), "train uses the argument 'data'"),
        (lambda data: _around(Learner(data).learn), "learn uses the attribute 'data'"),
        (_through_a_helper, "<lambda> uses the variable 'data'"),
        (_itself, "again uses the variable 'data'"),
    ],
)
def test_what_cannot_be_sent_is_named_wherever_it_is_held(around: Any, what: str) -> None:
    with pytest.raises(TrainFunctionError, match=f"{what} of type lock, which cannot be sent .*; create it inside"):
        pickle_train_fn(around(threading.Lock()))


@pytest.mark.parametrize(
    "around",
    [_around, _through_a_helper, lambda data: partial(train, data=data), lambda data: Learner(data).learn],
    ids=["a closure", "a closure of a helper", "a partial", "a method"],
)
def test_large_variables_are_named_with_their_sizes_and_how_to_share_data(around: Any) -> None:
    function = around(np.zeros(LARGE // 8 + 1000))
    payload = pickle_train_fn(function)
    (hint,) = size_hints(function, payload, "process")
    assert "uses 'data' (50 MB), which each worker receives" in hint
    assert "numpy.load(path, mmap_mode='r') or ParquetLoader" in hint
    assert len(hint.split()) <= 40
    assert size_hints(function, payload, "none") == ()
    assert size_hints(_around(b"few"), pickle_train_fn(_around(b"few")), "process") == ()


def test_a_large_variable_is_named_as_the_run_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"engine": "local", "workers": 1, "directory": tmp_path, "progress": "plain"}
    function = _around(np.zeros(LARGE // 8 + 1000))
    lagom(function, {"x": Float(0, 1)}, optimizer="random", n_trials=1, **options)
    assert "learn uses 'data' (50 MB), which each worker receives" in capfd.readouterr().out
    pytest.importorskip("torch")  # for the function on all workers
    run(function, {"x": 0.5}, **options)
    assert "learn uses 'data' (50 MB), which each worker receives" in capfd.readouterr().out
