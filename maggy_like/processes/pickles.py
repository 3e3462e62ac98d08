"""Pickles for other processes: functions and classes of a script or notebook by value, with their file names."""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

__all__ = ["Pickler", "dumps"]


def dumps(value: Any) -> bytes:
    """Pickle a value; ``pickle.loads`` reads the result."""
    if (storage := sys.modules.get("torch.storage")) is not None:
        Pickler.dispatch_table[storage.TypedStorage] = _reduce_storage
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, but keep its file: 3.1.3 writes ``<dynamic-code>``, so no source is found."""
    kind, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    at = next(at for at, argument in enumerate(arguments) if isinstance(argument, str))  # the file is the first text
    return kind, (*arguments[:at], code.co_filename, *arguments[at + 1 :])


class _Call:
    """An object that is pickled as the result of a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _reduce_storage(storage: Any) -> Any:
    """Reduce a tensor's memory to its bytes; torch would call ``torch.save``, which takes four times as long.

    Unpickling needs only torch.
    """
    torch: Any = sys.modules["torch"]  # an import of it stays in other packages
    untyped = storage._untyped_storage  # .untyped() warns
    if untyped.device.type != "cpu" or not untyped.nbytes():
        return storage.__reduce__()
    memory: Any = torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()
    filled = _Call(partial(torch.UntypedStorage.from_buffer, dtype=torch.uint8), pickle.PickleBuffer(memory))
    return partial(torch.TypedStorage, wrap_storage=filled, dtype=storage.dtype, _internal=True), ()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles functions and classes of a script or notebook by value."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: _reduce_code})
