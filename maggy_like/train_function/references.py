"""What a training function refers to: values, and the functions of the user's that it calls."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from maggy_like.processes.installation import is_installed
from maggy_like.train_function.names import name_of


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


def own_functions(train_fn: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """The function and those of the user's that it refers to, each once."""
    seen: set[int] = set()
    waiting: list[Any] = [train_fn]
    while waiting:
        value = waiting.pop()
        if isinstance(value, partial):
            waiting.append(value.func)
            continue
        if isinstance(value, type):
            waiting.extend(member for member in vars(value).values() if inspect.isfunction(member))
            continue
        if not isinstance(value, types.FunctionType | types.MethodType):
            value = getattr(value, "__call__", None)  # noqa: B004 (bound to its object, whose other methods it may call)
        owner = getattr(value, "__self__", None)
        function = inspect.unwrap(getattr(value, "__func__", value)) if value is not None else None
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        if is_installed(function.__module__):
            continue
        seen.add(id(function))
        yield function
        if owner is not None:
            waiting.extend(_methods_that(function, owner))
        values = [value for _, _, value in references(function)]
        waiting.extend(value for value in values if isinstance(value, types.FunctionType | type))
        for module in values:
            if isinstance(module, types.ModuleType) and not is_installed(module.__name__):
                waiting.extend(_functions_that(function, module))


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
