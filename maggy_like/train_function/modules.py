"""Which installed modules a training function uses: workers import them before any trial."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

from maggy_like.processes.imports import remembered
from maggy_like.processes.installation import is_installed
from maggy_like.train_function.own_imports import imports_of
from maggy_like.train_function.references import code_objects, held_values, own_functions

RENDEZVOUS = "maggy_like.distributed.rendezvous"
"""What workers need to run a trial together."""

_HELPERS = {
    "prepare": "maggy_like.distributed.parallel",
    "average": "maggy_like.distributed.parallel",
    "fully_shard": "maggy_like.distributed.sharded",
    "FullyShardedDataParallel": "maggy_like.distributed.sharded",
    "checkpoint": "fsspec.implementations.local",  # a tenth of a second and more, which each trial would pay
}
"""What a function calls, and the module that serves it."""


def modules_of(train_fn: Callable[..., Any], *, wide: bool = False) -> tuple[str, ...]:
    """Installed modules that the function uses, and those that earlier trials of this process have imported.

    Args:
        wide: Whether several workers may run it together.
    """
    names: dict[str, None] = {}
    words: set[str] = set()
    for function in own_functions(train_fn):
        for code in code_objects(function):
            imported = ""
            words.update(code.co_names, code.co_varnames)
            for instruction in dis.get_instructions(code):
                if instruction.opname == "IMPORT_NAME":
                    imported = str(instruction.argval)
                    names[imported] = None
                elif instruction.opname == "IMPORT_FROM" and not is_installed(imported):
                    names[f"{imported}.{instruction.argval}"] = None  # it may be a module
        if isinstance(function.__module__, str):  # exec() makes functions without a module
            names[function.__module__] = None  # one that travels by name is imported with its module
    for value in held_values(train_fn):
        names |= dict.fromkeys(_homes(value, words))
    own = [name for name in names if name != "__main__" and not is_installed(name)]
    names |= dict.fromkeys(imports_of(own, words))
    if wide:
        names[RENDEZVOUS] = None
    names |= {home: None for helper, home in _HELPERS.items() if helper in words}
    return tuple(dict.fromkeys((*filter(is_installed, names), *remembered())))


def _homes(value: Any, words: Collection[str]) -> Iterator[str]:
    """The module of a value; of a module itself, also those in it that the function names (``sklearn.ensemble``)."""
    if isinstance(value, types.ModuleType):
        yield value.__name__
        for inner in [inner for name, inner in list(vars(value).items()) if name in words]:
            if isinstance(inner, types.ModuleType) and inner.__name__.startswith(f"{value.__name__}."):
                yield from _homes(inner, words)
    else:
        of_function = getattr(value, "__module__", None) if callable(value) else None
        yield from (module for module in (of_function, type(value).__module__) if isinstance(module, str))
