"""Which installed modules a training function uses: workers import them before any trial."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from maggy_like.train_function.names import is_installed
from maggy_like.train_function.references import code_objects, own_functions, references

TORCH_LATE = "torch._dynamo"
"""What torch imports only when its first optimizer is made: a second per fresh process."""

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
    """Installed modules that the function uses, worth importing before any trial.

    Args:
        wide: Whether several workers may run it together.
    """
    names: dict[str, None] = {_home(train_fn): None}
    words: set[str] = set()
    for function in own_functions(train_fn):
        for code in code_objects(function):
            words.update(code.co_names, code.co_varnames)
            for instruction in dis.get_instructions(code):
                if instruction.opname == "IMPORT_NAME":
                    names[str(instruction.argval)] = None
        values = [value for _, _, value in references(function)]
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


def _home(function: Any) -> str:
    return _home(function.func) if isinstance(function, partial) else str(getattr(function, "__module__", ""))
