"""What of a training function cannot be sent to the workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from pyspark.core.broadcast import Broadcast

from maggy_like.errors import TrainFunctionError
from maggy_like.train_function.pickling import pickle_train_fn


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
        match=r"uses the argument 'data' of type DataFrame, .*: Spark's sessions and tables are the driver's alone; "
        r"let the function refer to the rows themselves \(df\.toPandas\(\)\), or write them",
    ):
        pickle_train_fn(partial(train, data=DataFrame()))
