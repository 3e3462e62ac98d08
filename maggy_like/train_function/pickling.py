"""A training function as bytes for the workers; where it cannot be pickled, what in it is the reason."""

from __future__ import annotations

import io
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from maggy_like.errors import TrainFunctionError
from maggy_like.processes.pickles import Pickler
from maggy_like.protocol.task import Isolation
from maggy_like.protocol.texts import encodable
from maggy_like.train_function.names import name_of
from maggy_like.train_function.references import references

LARGE = 50_000_000
"""Bytes of a variable that is worth a hint, since each worker receives and loads it."""

_MAX_NAMED = 3

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


def size_hints(train_fn: Callable[..., Any], payload: bytes, isolation: Isolation) -> tuple[str, ...]:
    """Return a hint about the large variables that travel with the function.

    Args:
        train_fn: The function.
        payload: The function, pickled.
        isolation: That of the trials: in this process nothing is sent.
    """
    if isolation == "none" or len(payload) <= LARGE:
        return ()
    found = sorted(_large_variables(train_fn, {id(train_fn)}), reverse=True)
    named = [f"{name!r} ({size / 1e6:.0f} MB)" for size, name in found[:_MAX_NAMED]]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    what = f"{', '.join(named)}{more}" if named else f"data of {len(payload) / 1e6:.0f} MB"
    hint = (
        f"{name_of(train_fn)} uses {what}, which each worker receives before its first trial; to start sooner, write "
        "the data to files and open those in the function, with numpy.load(path, mmap_mode='r') or ParquetLoader"
    )
    return (encodable(hint),)


def _large_variables(function: Any, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Size and name of the large values that a function brings along, by itself or with another one."""
    for _, name, value in references(_holder(function)):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if (size := _size(value)) > LARGE:
            is_code = isinstance(value, types.FunctionType | types.MethodType | partial)
            yield from (is_code and list(_large_variables(value, seen))) or [(size, name)]


def _holder(function: Any) -> Any:
    """What has the values that a function brings along: of a method its object."""
    return function.__self__ if isinstance(function, types.MethodType) else function


class _Counter(io.RawIOBase):
    """A file that counts what is written to it, and keeps nothing."""

    def __init__(self) -> None:
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = memoryview(data).nbytes
        self.size += written
        return written


def _size(value: Any) -> int:
    """Bytes of a value as it is sent; 0 if it can only be sent with what holds it."""
    counter = _Counter()
    try:
        _Pickler(counter).dump(value)
    except Exception:  # objects may raise anything
        return 0
    return counter.size


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


def _find_culprit(function: Any, above: frozenset[int] = frozenset()) -> tuple[str, str, Any] | None:
    held = _holder(function)
    above |= {id(held)}
    for where, name, value in references(held):
        if id(_holder(value)) in above:  # a function that calls itself
            continue
        try:
            _dumps(value)
        except Exception:
            is_code = isinstance(value, types.FunctionType | types.MethodType | partial)
            return (is_code and _find_culprit(value, above)) or (where, name, value)
    return None
