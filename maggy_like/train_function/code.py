"""What the code of a training function shows: the values it refers to, its use of the reporter, and a hash."""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import inspect
import os
import shlex
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from maggy_like.processes.imports import is_installed

INJECTED = ("reporter", "config", "budget")
"""Parameters of a training function that the runtime fills, not the search space."""


def name_of(function: object) -> str:
    """Return the name that messages use for a function."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", None) or type(function).__name__)


def place_of(function: object) -> str:
    """Return where another process finds a function: ``FILE:NAME``, or only its name if it is not in a file.

    A file below the working directory has a relative path. Empty for a function of this package.
    """
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    if (getattr(inner, "__module__", None) or "").partition(".")[0] == __name__.partition(".")[0]:
        return ""
    if not isinstance(function, types.FunctionType) or not function.__name__.isidentifier():
        return "train_fn"
    file = getattr(inspect.unwrap(function), "__code__", function.__code__).co_filename
    if not os.path.isfile(file) or function.__qualname__ != function.__name__:
        return function.__name__
    with contextlib.suppress(OSError):  # the working directory may have been deleted
        relative = os.path.relpath(file)
        file = os.path.abspath(file) if relative.startswith(os.pardir) else relative
    return f"{file}:{function.__name__}"


def rerun_hint(function: str, directory: str, trial: int) -> str:
    """Return how to run a recorded trial again under a debugger. Empty if its function is not known."""
    if ":" in function:
        return f"to debug it: maggy-like rerun {shlex.quote(directory)} {trial} {shlex.quote(function)} --pdb"
    return f"to debug it: load_run({directory!r}).rerun({trial}, {function})" if function else ""


MAX_VALUES = 1000
"""Values to inspect in what a function holds."""

MAX_PARTS = 50
"""Parts to inspect of each value."""


def references(function: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what a function refers to: (kind, name, value)."""
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
    """Yield the function, what it and the user's functions that it calls refer to, and the parts of those values.

    Parts are the steps of a pipeline, the arguments of a partial, the attributes of an object. Only some parts of a
    large value are inspected.
    """
    functions = own_functions(train_fn)
    waiting = deque([train_fn, *(value for function in functions for _, _, value in references(function))])
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MAX_VALUES:
        value = waiting.popleft()
        if id(value) not in seen:
            seen[id(value)] = value  # kept, so that no other value gets its id
            yield value
            waiting.extend(islice(_parts(value), MAX_PARTS))


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts of a value, except of functions, classes and modules, whose code is read instead."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield value.__self__
    elif not isinstance(value, types.FunctionType | type | types.ModuleType):
        with contextlib.suppress(Exception):  # attribute access may run any code; some objects have no vars()
            if isinstance(value, dict):
                yield from value.values()
            elif isinstance(value, list | tuple | set | frozenset):
                yield from value
            yield from vars(value).values()


def own_functions(train_fn: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """Yield the function and the user's functions that it refers to, each once."""
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
        function = getattr(value, "__func__", value)
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        if isinstance(versions := getattr(value, "registry", None), types.MappingProxyType):  # of a singledispatch
            waiting += _callables(versions.values())
        if not is_installed(function.__globals__.get("__name__")):  # not __module__, which functools.wraps copies
            yield function
            if owner is not None:
                waiting.extend(_methods_that(function, owner))
            values = [value for _, _, value in references(function)]
            waiting += _callables(values)
            for module in values:
                if isinstance(module, types.ModuleType) and not is_installed(module.__name__):
                    waiting.extend(_functions_that(function, module))
        if (inner := getattr(function, "__wrapped__", None)) is not None:  # last, so that it is read with its object
            is_method = owner is not None and isinstance(inner, types.FunctionType)
            waiting.append(types.MethodType(inner, owner) if is_method else inner)


def _callables(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, _CALLED)]


_CALLED = types.FunctionType, types.MethodType, type, partial, functools._lru_cache_wrapper
"""The kinds of values whose code is read."""


def _methods_that(function: types.FunctionType, owner: Any) -> Iterator[types.MethodType]:
    """Yield the methods of ``owner`` that one of its methods names."""
    for name in {name for code in code_objects(function) for name in code.co_names}:
        if isinstance(method := getattr(type(owner), name, None), types.FunctionType):
            yield types.MethodType(method, owner)


def _functions_that(function: types.FunctionType, module: types.ModuleType) -> Iterator[Any]:
    """Yield the functions and classes of a module that a function names."""
    for name in {name for code in code_objects(function) for name in code.co_names}:
        if isinstance(value := vars(module).get(name), types.FunctionType | type):
            yield value


def code_objects(function: types.FunctionType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of the functions and classes defined in it."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


CALLBACKS = frozenset(
    {"KerasReport", "LightGBMReport", "LightningReport", "TransformersReport", "XGBoostReport", "sklearn_steps"}
)
"""The callbacks of :mod:`maggy_like.callbacks`: each saves, restores and reads the budget."""


def uses_checkpoints(train_fn: Callable[..., Any]) -> bool:
    """Return whether the function, or one of the user's that it refers to, saves and restores checkpoints.

    The code must call a method ``checkpoint`` or ``restore`` of a variable or of an attribute ``reporter``, or read one
    from something named ``reporter``. Other uses of these names do not count: a string, a function ``checkpoint`` of a
    module. A callback of :mod:`maggy_like.callbacks` does both. Other ways (``getattr``, an installed package) are not
    detected.
    """
    used = {name for code in _all_code(train_fn) for name in _methods_of_variables(code)}
    return {"checkpoint", "restore"} <= used or _uses_a_callback(train_fn)


def _methods_of_variables(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the methods that code calls on a variable or ``reporter``, or reads from ``reporter``."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "EXTENDED_ARG":  # belongs to the next instruction, in code with many names
            continue
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and before is not None:
            receiver = before.argval[-1] if isinstance(before.argval, tuple) else before.argval
            # From 3.12 on, the lowest bit of LOAD_ATTR means that the attribute is called.
            is_call = instruction.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool(instruction.arg & 1))
            is_variable = before.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME"))
            if receiver == "reporter" or (is_call and is_variable):
                yield str(instruction.argval)
        before = instruction


def uses_budget(train_fn: Callable[..., Any]) -> bool:
    """Return whether the function, or one that it calls by name, reads its number of steps."""
    return _uses_a_callback(train_fn) or any(
        "budget" in code.co_names or "budget" in code.co_varnames[: code.co_argcount] for code in _all_code(train_fn)
    )


def _uses_a_callback(train_fn: Callable[..., Any]) -> bool:
    return any(not CALLBACKS.isdisjoint((*code.co_names, *code.co_freevars)) for code in _all_code(train_fn))


def _all_code(train_fn: Callable[..., Any]) -> Iterator[types.CodeType]:
    return (code for function in own_functions(train_fn) for code in code_objects(function))


def code_hash(train_fn: Callable[..., Any]) -> str:
    """Return a hash of the code of a function and of the user's functions that it calls; empty if they have none.

    Comments, line numbers and the names of functions do not matter. The hash starts with the version of Python, since
    each has its own bytecode.
    """
    codes = [b"".join(sorted(map(_digest, code_objects(function)))) for function in own_functions(train_fn)]
    if not codes:
        return ""
    return f"{sys.implementation.cache_tag}:{hashlib.sha256(b''.join(sorted(codes))).hexdigest()[:16]}"


def is_comparable(one: str, other: str) -> bool:
    """Return whether two results of :func:`code_hash` are of the same version of Python."""
    return bool(one) and one.partition(":")[0] == other.partition(":")[0]


def _digest(code: types.CodeType) -> bytes:
    constants = [_plain(constant) for constant in code.co_consts if not isinstance(constant, types.CodeType)]
    parts = code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).digest()


def _plain(constant: Any) -> Any:
    """Return a constant in a form whose text does not depend on the process, as that of a set does."""
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return tuple(map(_plain, constant)) if isinstance(constant, tuple) else constant
