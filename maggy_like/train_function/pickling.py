"""A training function as bytes for the workers; where it cannot be pickled, what in it is the reason."""

from __future__ import annotations

import io
import types
from collections.abc import Callable
from typing import Any

from maggy_like.errors import TrainFunctionError
from maggy_like.processes.pickles import Pickler
from maggy_like.train_function.names import name_of
from maggy_like.train_function.references import references

_OF_SPARK = (
    "let the function refer to the rows themselves (df.toPandas()), or write them with df.write.parquet(...) and read "
    "the files there (maggy_like.ml.ParquetLoader)"
)


def pickle_train_fn(train_fn: Callable[..., Any]) -> bytes:
    """The function as bytes for the workers.

    Raises:
        TrainFunctionError: It holds something that cannot be sent, which the message names.
    """
    return pickle_named(train_fn, name_of(train_fn))


def pickle_named(value: Any, what: str) -> bytes:
    """A value as bytes for the workers.

    Args:
        value: A function, most of the time.
        what: It, in words, for the message.

    Raises:
        TrainFunctionError: It is or holds something that cannot be sent, which the message names.
    """
    try:
        return _dumps(value)
    except Exception as error:
        culprit = _find_culprit(value)
        if culprit is None:
            raise TrainFunctionError(f"{what} cannot be sent to the workers: {error}") from error
        where, name, found = culprit
        why, remedy = f" ({error})", "create it inside the function"
        if isinstance(error, _Useless):
            remedy = "pass its value"
        elif type(found).__module__.startswith("pyspark."):
            why, remedy = ": Spark's sessions and tables are the driver's alone", _OF_SPARK
        raise TrainFunctionError(
            f"{what} uses {where} {name!r} of type {type(found).__name__}, which cannot be sent "
            f"to the workers{why}; {remedy}"
        ) from error


class _Useless(TypeError):
    """What can be pickled would not work in a trial."""


class _Pickler(Pickler):
    """Refuses what would not work in a trial."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__name__ == "Broadcast" and type(obj).__module__.startswith("pyspark."):
            raise _Useless("Spark loads it in its own tasks alone, and a trial has a process of its own")
        if type(obj).__name__ in ("SparkSession", "DataFrame") and type(obj).__module__.startswith("pyspark.sql."):
            raise TypeError("it is the driver's alone")  # those of Spark Connect are pickled, and fail as they arrive
        return super().reducer_override(obj)


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _find_culprit(function: Any) -> tuple[str, str, Any] | None:
    for where, name, value in references(function):
        try:
            _dumps(value)
        except Exception:
            inner = _find_culprit(value) if isinstance(value, types.FunctionType) else None
            return inner or (where, name, value)
    return None
