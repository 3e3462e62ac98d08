"""What can be known of a training function before it runs: parameters, modules, pickle."""

from __future__ import annotations

import dis
import importlib.util
import inspect
import keyword
import linecache
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import cloudpickle

from maggy_like.errors import TrainFunctionError
from maggy_like.train_function.invoke import INJECTED
from optimizers.checks.near_names import did_you_mean
from optimizers.space.search_space import SearchSpace

TORCH_LATE = "torch._dynamo"
"""What torch imports only when its first optimizer is made: a second per fresh process."""


RENDEZVOUS = "maggy_like.distributed.rendezvous"
"""What workers need to run a trial together."""

MAX_SOURCE = 100_000
"""Characters of a file whose text travels with the function."""

_HELPERS = {
    "prepare": "maggy_like.distributed.parallel",
    "average": "maggy_like.distributed.parallel",
    "fully_shard": "maggy_like.distributed.sharded",
    "FullyShardedDataParallel": "maggy_like.distributed.sharded",
    "checkpoint": "fsspec.implementations.local",  # a tenth of a second and more, which each trial would pay
}
"""What a function calls, and the module that serves it."""


def check_order(train_fn: Any, searchspace: Any) -> None:
    """Check that the function and its search space are not given in each other's place.

    Raises:
        TrainFunctionError: They are.
    """
    if isinstance(train_fn, SearchSpace | Mapping):
        mend = f"lagom({name_of(searchspace)}, space)" if callable(searchspace) else "lagom(train_fn, space)"
        raise TrainFunctionError(f"train_fn must be a function, got the search space {train_fn!r}; call {mend}")


def check_parameters(train_fn: Callable[..., Any], space: SearchSpace, *, source: str = "the search space") -> None:
    """Check that every parameter of ``train_fn`` is filled, and every name of the space is taken.

    Args:
        source: What people call the space.

    Raises:
        TrainFunctionError: One is not.
    """
    name = name_of(train_fn)
    if not callable(train_fn):
        raise TrainFunctionError(f"train_fn must be a function, got {train_fn!r}")
    try:
        parameters = inspect.signature(train_fn).parameters
    except (TypeError, ValueError) as error:
        raise TrainFunctionError(f"the parameters of {name} cannot be read: {error}; wrap it in a def") from error
    takes_all = "config" in parameters
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} is positional-only; parameters are given by name"
            )
        elif parameter.default is inspect.Parameter.empty:
            _check_filled(name, parameter.name, space, source)
    for given in space.names:
        if given in INJECTED:
            raise TrainFunctionError(
                f"{source} has a parameter {given!r}, but {name} gets its {given!r} from the "
                "runtime; choose another name"
            )
        if not takes_all and (keyword.iskeyword(given) or not given.isidentifier()):
            raise TrainFunctionError(
                f"{name} cannot have a parameter {given!r}, which {source} sets: it is no Python identifier; take "
                f"config (a dict of all) and use config[{given!r}], or take **parameters"
            )
        if given not in parameters and not takes_all:
            raise TrainFunctionError(
                f"{name} has no parameter {given!r}, which {source} sets"
                f"{did_you_mean(given, parameters)}; add it, or take config (a dict of all)"
            )


def _check_filled(function: str, name: str, space: SearchSpace, source: str) -> None:
    if name in INJECTED:
        return
    if name not in space:
        known = [*space.names, *INJECTED]
        raise TrainFunctionError(
            f"nothing fills the parameter {name!r} of {function}{did_you_mean(name, known)}; "
            f"give it a default, or add it to {source} (which has {', '.join(space.names) or 'nothing'})"
        )
    if space.domains[name].when:
        raise TrainFunctionError(
            f"parameter {name!r} of {function} is conditional in the search space, so it is not always "
            f"given; give it a default, such as {name}=None"
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
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        culprit = _find_culprit(value)
        if culprit is None:
            raise TrainFunctionError(f"{what} cannot be sent to the workers: {error}") from error
        where, name, found = culprit
        raise TrainFunctionError(
            f"{what} uses {where} {name!r} of type {type(found).__name__}, which cannot be sent "
            f"to the workers ({error}); create it inside the function"
        ) from error


def _find_culprit(function: Any) -> tuple[str, str, Any] | None:
    for where, name, value in _references(function):
        try:
            cloudpickle.dumps(value)
        except Exception:
            inner = _find_culprit(value) if isinstance(value, types.FunctionType) else None
            return inner or (where, name, value)
    return None


def _references(function: Any) -> Iterator[tuple[str, str, Any]]:
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


def uses_checkpoints(train_fn: Callable[..., Any]) -> bool:
    """Whether the function, or one of the user's that it refers to, both saves and restores checkpoints.

    What counts is a method ``checkpoint`` or ``restore`` of a variable or of an attribute ``reporter``, which the code
    calls, or takes from what is named ``reporter``. A word alone counts for nothing: a name, a string, a function
    ``checkpoint`` of a module. What is reached in other ways (by ``getattr``, in an installed package) is not seen.
    """
    codes = (code for function in _own_functions(train_fn) for code in _codes(function))
    return {"checkpoint", "restore"} <= {name for code in codes for name in _methods_of_variables(code)}


def _methods_of_variables(code: types.CodeType) -> Iterator[str]:
    """The names of the methods that code calls of a variable or of ``reporter``, or takes from ``reporter``."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and before is not None:
            receiver = before.argval[-1] if isinstance(before.argval, tuple) else before.argval
            # From 3.12 on the lowest bit of LOAD_ATTR says that the attribute is called.
            is_call = instruction.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool(instruction.arg & 1))
            is_variable = before.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME"))
            if receiver == "reporter" or (is_call and is_variable):
                yield str(instruction.argval)
        before = instruction


def uses_budget(train_fn: Callable[..., Any]) -> bool:
    """Whether the function, or one it calls by name, asks how many steps it has."""
    codes = [code for function in _own_functions(train_fn) for code in _codes(function)]
    return any("budget" in code.co_names or "budget" in code.co_varnames[: code.co_argcount] for code in codes)


def modules_of(train_fn: Callable[..., Any], *, wide: bool = False) -> tuple[str, ...]:
    """Installed modules that the function uses, worth importing before any trial.

    Args:
        wide: Whether several workers may run it together.
    """
    names: dict[str, None] = {_home(train_fn): None}
    words: set[str] = set()
    for function in _own_functions(train_fn):
        for code in _codes(function):
            words.update(code.co_names, code.co_varnames)
            for instruction in dis.get_instructions(code):
                if instruction.opname == "IMPORT_NAME":
                    names[str(instruction.argval)] = None
        values = [value for _, _, value in _references(function)]
        if function.__module__ != "__main__":  # travels by name: a child imports all that its module does
            values += vars(sys.modules.get(function.__module__, types)).values()
        for value in values:
            module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            if isinstance(module, str):
                names[module] = None
    uses_torch = any(name.partition(".")[0] == "torch" for name in names)
    if uses_torch and any("optim" in word for word in (*names, *words)):
        names[TORCH_LATE] = None
    if wide:
        names |= {RENDEZVOUS: None, TORCH_LATE: None}
    names |= {home: None for helper, home in _HELPERS.items() if helper in words}
    return tuple(name for name in names if is_installed(name))


def sources_of(train_fn: Callable[..., Any]) -> dict[str, str]:
    """The text of the files and notebook cells that define what travels by value, by file name, for tracebacks."""
    names = {
        function.__code__.co_filename for function in _own_functions(train_fn) if function.__module__ == "__main__"
    }
    texts = {name: "".join(linecache.getlines(name)) for name in sorted(names)}
    return {name: text for name, text in texts.items() if 0 < len(text) <= MAX_SOURCE}


def _home(function: Any) -> str:
    return _home(function.func) if isinstance(function, partial) else str(getattr(function, "__module__", ""))


def _own_functions(train_fn: Callable[..., Any]) -> Iterator[types.FunctionType]:
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
        waiting.extend(value for _, _, value in _references(function) if isinstance(value, types.FunctionType | type))


def _methods_that(function: types.FunctionType, owner: Any) -> Iterator[types.MethodType]:
    """The methods of ``owner`` that one of its methods names."""
    for name in {name for code in _codes(function) for name in code.co_names}:
        if isinstance(method := getattr(type(owner), name, None), types.FunctionType):
            yield types.MethodType(method, owner)


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def is_installed(module: str | None) -> bool:
    """Whether a module belongs to the installation (not to the user's own project)."""
    if not module or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("maggy_like", "optimizers"):
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    origin = (spec.origin or "") if spec is not None else ""
    paths = sysconfig.get_paths()
    return any(origin.startswith(paths[kind]) for kind in ("purelib", "platlib"))


def name_of(function: object) -> str:
    """A function's name for messages."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", None) or type(function).__name__)
