"""Pickles for other processes: functions and classes of a script or notebook by value, with their file names.

Some objects are pickled as the name under which their module has them: cached functions, functions with one version per
type, new types. Another process has no such name if the module is a script, so these are pickled by value, too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import operator
import pickle
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import cloudpickle

from maggy_like.processes.imports import MAINS, is_installed

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


def _has_name_elsewhere(value: Any) -> bool:
    """Return whether another process finds a value under its name, in a module that it can import."""
    name = getattr(value, "__module__", None)
    if not isinstance(name, str) or name in MAINS or name in cloudpickle.list_registry_pickle_by_value():
        return False
    found: Any = sys.modules.get(name)
    for part in getattr(value, "__qualname__", value.__name__).split("."):
        found = getattr(found, part, None)
    return found is value


def _is_by_value(module: str) -> bool:
    """Return whether no other process can import a module by its name.

    That is the script in a child of multiprocessing or of ``runpy``, and a module whose import has not ended, because
    its import would start the same search again.
    """
    found = sys.modules.get(module)
    if found is None or module == "__main__":  # which cloudpickle knows
        return False
    spec = getattr(found, "__spec__", None)
    return module in MAINS or getattr(spec, "_initializing", spec is None and not is_installed(module))


def _reduce_cached(function: Any) -> Any:
    """Reduce a function with a cache to the function and an empty cache."""
    if _has_name_elsewhere(function):
        return function.__qualname__
    parameters = function.cache_parameters()
    decorator = _Call(functools.lru_cache, parameters["maxsize"], parameters["typed"])
    added = {name: value for name, value in vars(function).items() if name not in _OF_WRAPPERS}
    return operator.call, (decorator, function.__wrapped__), added or None


_OF_WRAPPERS = frozenset({*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"})
"""The attributes that a decorator sets itself."""


def _reduce_cached_property(value: functools.cached_property[Any]) -> Any:
    """Reduce a cached property without the lock that Python 3.11 gives it."""
    added = {name: part for name, part in vars(value).items() if name != "lock"}
    return functools.cached_property, (value.func,), added


_DISPATCHER = cast(types.FunctionType, functools.singledispatch(len)).__code__
"""The code that all functions with one version per type share."""


def _reduce_dispatcher(function: Any) -> Any:
    """Reduce a function with one version per type to its versions."""

    def register(made: Any, versions: Mapping[type, Any]) -> None:  # is sent by value
        for kind, version in versions.items():
            made.register(kind, version)

    versions = dict(function.registry)
    return functools.singledispatch, (versions[object],), versions, None, None, register


def _reduce_name(value: Any) -> Any:
    """Reduce what only names a type to its name, in whichever module it is."""
    if _has_name_elsewhere(value):
        return value.__name__
    if isinstance(value, typing.NewType):
        return typing.NewType, (value.__name__, value.__supertype__)
    if hasattr(value, "__value__"):  # an alias by the statement ``type`` (Python 3.12)
        return type(value), (value.__name__, value.__value__)
    return type(value), (value.__name__,)


_NAMES = (typing.NewType, typing.ParamSpec, typing.TypeVarTuple, getattr(typing, "TypeAliasType", typing.NewType))


def _registrations(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the libraries with which a script has registered a class or function, each with its name there."""
    with contextlib.suppress(KeyError, AttributeError):  # it is not imported, or not completely
        for name, registered in sys.modules["keras"].saving.get_custom_objects().items():
            if registered is value:
                yield "keras", name
    with contextlib.suppress(KeyError, AttributeError):
        if any(registered is value for registered in sys.modules["torch"].serialization.get_safe_globals()):
            yield "torch", ""


def _set_and_register(places: Iterable[tuple[str, str]], set_state: Callable[..., Any], made: Any, state: Any) -> None:
    """Complete a class or function that travels by value, and register it as it was where it comes from."""
    set_state(made, state)
    for library, registered in places:
        module = importlib.import_module(library)
        if library == "torch":
            module.serialization.add_safe_globals([made])
        else:
            package, _, name = registered.rpartition(">")
            module.saving.get_custom_objects()[registered] = made
            if package:  # else it was only put there
                module.saving.register_keras_serializable(package, name)(made)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles by value what is defined in a script or notebook."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {
            types.CodeType: _reduce_code,
            functools._lru_cache_wrapper: _reduce_cached,
            functools.cached_property: _reduce_cached_property,
            **dict.fromkeys(_NAMES, _reduce_name),
        }
    )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type) and isinstance(module := obj.__module__, str):
            if _is_by_value(module):
                cloudpickle.register_pickle_by_value(sys.modules[module])
            if getattr(obj, "__code__", None) is _DISPATCHER and not _has_name_elsewhere(obj):
                return _reduce_dispatcher(obj)
            reduced = super().reducer_override(obj)
            if reduced is not NotImplemented and len(reduced) == 6 and (places := list(_registrations(obj))):
                return *reduced[:5], partial(_set_and_register, places, reduced[5])
            return reduced
        return super().reducer_override(obj)
