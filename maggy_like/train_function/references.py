"""What a training function refers to: values, and the functions of the user's that it calls."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from maggy_like.processes.installation import is_installed
from maggy_like.train_function.names import name_of

MAX_VALUES = 1000
"""Values that are looked at in what a function holds."""

MAX_PARTS = 50
"""Of each value."""


def references(function: Any) -> Iterator[tuple[str, str, Any]]:
    """What a function brings along: (kind, name, value)."""
    if isinstance(function, partial):
        yield from (("the argument", str(name), value) for name, value in enumerate(function.args))
        yield from (("the argument", name, value) for name, value in function.keywords.items())
        yield "the function", name_of(function.func), function.func
    elif isinstance(function, types.FunctionType):
        captured = inspect.getclosurevars(function)
        yield from (("the variable", name, value) for name, value in captured.nonlocals.items())
        yield from (("the global", name, value) for name, value in captured.globals.items())
        yield from (("the default", name, value) for name, value in _defaults(function).items())
    elif hasattr(function, "__dict__"):
        yield from (("the attribute", name, value) for name, value in vars(function).items())


def _defaults(function: types.FunctionType) -> Mapping[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def held_values(train_fn: Callable[..., Any]) -> Iterator[Any]:
    """The function, what it and the user's functions that it calls refer to, and what lies in those values.

    That is the steps of a pipeline, the arguments of a partial, the attributes of an object. Of large ones only a part
    is looked at.
    """
    functions = own_functions(train_fn)
    waiting = deque([train_fn, *(value for function in functions for _, _, value in references(function))])
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MAX_VALUES:
        value = waiting.popleft()
        if id(value) not in seen:
            seen[id(value)] = value  # kept, so that no other gets its id
            yield value
            waiting.extend(islice(_parts(value), MAX_PARTS))


def _parts(value: Any) -> Iterator[Any]:
    """What lies in a value; functions, classes and modules are looked at by their code."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield value.__self__
    elif not isinstance(value, types.FunctionType | type | types.ModuleType):
        with contextlib.suppress(Exception):  # objects may answer as they like; those without attributes have no vars()
            if isinstance(value, dict):
                yield from value.values()
            elif isinstance(value, list | tuple | set | frozenset):
                yield from value
            yield from vars(value).values()


def own_functions(train_fn: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """The function and those of the user's that it refers to, each once."""
    seen: set[int] = set()
    waiting: list[Any] = [train_fn]
    while waiting:
        value = waiting.pop()
        if isinstance(value, type):
            waiting.extend(member for member in vars(value).values() if inspect.isfunction(member))
            continue
        if not isinstance(value, types.FunctionType | types.MethodType):
            if id(value) in seen:
                continue
            seen.add(id(value))
        if isinstance(value, partial):
            waiting += [value.func, *_callables(value.args), *_callables(value.keywords.values())]
            continue
        if not isinstance(value, types.FunctionType | types.MethodType):
            waiting += _callables(getattr(value, "__dict__", {}).values())
            value = getattr(value, "__call__", None)  # noqa: B004 (bound to its object, whose other methods it may call)
        owner = getattr(value, "__self__", None)
        function = inspect.unwrap(getattr(value, "__func__", value)) if value is not None else None
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        if isinstance(function.__module__, str) and is_installed(function.__module__):
            continue
        seen.add(id(function))
        yield function
        if owner is not None:
            waiting.extend(_methods_that(function, owner))
        values = [value for _, _, value in references(function)]
        waiting += _callables(values)
        for module in values:
            if isinstance(module, types.ModuleType) and not is_installed(module.__name__):
                waiting.extend(_functions_that(function, module))


def _callables(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, types.FunctionType | types.MethodType | type | partial)]


def _methods_that(function: types.FunctionType, owner: Any) -> Iterator[types.MethodType]:
    """The methods of ``owner`` that one of its methods names."""
    for name in {name for code in code_objects(function) for name in code.co_names}:
        if isinstance(method := getattr(type(owner), name, None), types.FunctionType):
            yield types.MethodType(method, owner)


def _functions_that(function: types.FunctionType, module: types.ModuleType) -> Iterator[Any]:
    """The functions and classes of a module that a function names."""
    for name in {name for code in code_objects(function) for name in code.co_names}:
        if isinstance(value := vars(module).get(name), types.FunctionType | type):
            yield value


def code_objects(function: types.FunctionType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions and classes that are written in it."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
