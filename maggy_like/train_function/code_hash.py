"""Whether two runs have the same training function, as far as its code says."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from maggy_like.train_function.references import code_objects, own_functions


def code_hash(train_fn: Callable[..., Any]) -> str:
    """Identify the code of a function and of the user's functions that it calls; empty if they have none.

    Comments, line numbers and the names of functions do not matter. Each version of Python has a bytecode of its own,
    so its name comes first.
    """
    codes = [b"".join(sorted(map(_digest, code_objects(function)))) for function in own_functions(train_fn)]
    if not codes:
        return ""
    return f"{sys.implementation.cache_tag}:{hashlib.sha256(b''.join(sorted(codes))).hexdigest()[:16]}"


def is_comparable(one: str, other: str) -> bool:
    """Whether two of :func:`code_hash` are of one version of Python."""
    return bool(one) and one.partition(":")[0] == other.partition(":")[0]


def _digest(code: CodeType) -> bytes:
    constants = [_plain(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
    parts = code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).digest()


def _plain(constant: Any) -> Any:
    """A constant whose text does not depend on the process: a set's does."""
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return tuple(map(_plain, constant)) if isinstance(constant, tuple) else constant
