"""What a training function asks of its reporter: checkpoints, a budget."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from maggy_like.train_function.references import code_objects, own_functions

CALLBACKS = frozenset(
    {"KerasReport", "LightGBMReport", "LightningReport", "TransformersReport", "XGBoostReport", "sklearn_steps"}
)
"""What :mod:`maggy_like.callbacks` offers: each saves, restores, and asks for the budget."""


def uses_checkpoints(train_fn: Callable[..., Any]) -> bool:
    """Whether the function, or one of the user's that it refers to, both saves and restores checkpoints.

    What counts is a method ``checkpoint`` or ``restore`` of a variable or of an attribute ``reporter``, which the code
    calls, or takes from what is named ``reporter``. A word alone counts for nothing: a name, a string, a function
    ``checkpoint`` of a module. A callback of :mod:`maggy_like.callbacks` does both. What is reached in other ways (by
    ``getattr``, in an installed package) is not seen.
    """
    used = {name for code in _all_code(train_fn) for name in _methods_of_variables(code)}
    return {"checkpoint", "restore"} <= used or _uses_a_callback(train_fn)


def _methods_of_variables(code: types.CodeType) -> Iterator[str]:
    """The names of the methods that code calls of a variable or of ``reporter``, or takes from ``reporter``."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "EXTENDED_ARG":  # belongs to the next one, in code of many names
            continue
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
    return _uses_a_callback(train_fn) or any(
        "budget" in code.co_names or "budget" in code.co_varnames[: code.co_argcount] for code in _all_code(train_fn)
    )


def _uses_a_callback(train_fn: Callable[..., Any]) -> bool:
    """Whether the function, or one it calls by name, names a callback of ours."""
    return any(not CALLBACKS.isdisjoint((*code.co_names, *code.co_freevars)) for code in _all_code(train_fn))


def _all_code(train_fn: Callable[..., Any]) -> Iterator[types.CodeType]:
    return (code for function in own_functions(train_fn) for code in code_objects(function))
