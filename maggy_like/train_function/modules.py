"""The installed modules that a training function uses, which workers import before any trial."""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib.util
import threading
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from maggy_like.processes.imports import MAINS, is_installed, remembered
from maggy_like.train_function.code import code_objects, held_values, own_functions

RENDEZVOUS = "maggy_like.distributed.rendezvous"
"""The module that workers need to run a trial together."""

_HELPERS = {
    "prepare": "maggy_like.distributed.parallel",
    "average": "maggy_like.distributed.parallel",
    "fully_shard": "maggy_like.distributed.sharded",
    "FullyShardedDataParallel": "maggy_like.distributed.sharded",
}
"""A name that a function uses, and the module that serves it."""


def modules_of(train_fn: Callable[..., Any], *, multi_worker: bool = False) -> tuple[str, ...]:
    """Return the installed modules that the function uses, and those that earlier trials of this process imported."""
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
    own = [name for name in names if not (name in MAINS or is_installed(name))]
    names |= dict.fromkeys(imports_of(own, words))
    if multi_worker:
        names[RENDEZVOUS] = None
    names |= {home: None for helper, home in _HELPERS.items() if helper in words}
    return tuple(dict.fromkeys((*filter(is_installed, names), *remembered())))


def _homes(value: Any, words: Collection[str]) -> Iterator[str]:
    """Yield a value's module; of a module, also the submodules that the function names (``sklearn.ensemble``)."""
    if isinstance(value, types.ModuleType):
        yield value.__name__
        for inner in [inner for name, inner in list(vars(value).items()) if name in words]:
            if isinstance(inner, types.ModuleType) and inner.__name__.startswith(f"{value.__name__}."):
                yield from _homes(inner, words)
    else:
        of_function = getattr(value, "__module__", None) if callable(value) else None
        yield from (module for module in (of_function, type(value).__module__) if isinstance(module, str))


MAX_CHARACTERS = 1 << 20
"""Maximum characters to read of the user's project: parsing them takes about half a second."""

_PARSING = threading.Lock()
"""Before 3.13, Python counts the depth of a parsed tree for all threads together, and fails if two threads parse."""


def imports_of(modules: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the installed modules that the user's modules import, directly or through each other.

    ``names`` are those that the training function uses. Imports inside a function count only if the function has one of
    these names.
    """
    found: dict[str, None] = {}
    waiting, seen, left = deque(dict.fromkeys(modules)), set[str](), MAX_CHARACTERS
    while waiting and left > 0:
        module = waiting.popleft()
        if module in seen or (spec := _find(module)) is None:
            continue
        seen.add(module)
        source = _source(spec)
        left -= len(source)
        for name in _imports_in(source, spec, names):
            if is_installed(name):
                found[name] = None
            else:
                waiting.append(name)
    return list(found)


def _find(module: str) -> ModuleSpec | None:
    """Find a module without importing its parent packages."""
    path, parts, spec = None, module.split("."), None
    with contextlib.suppress(Exception):  # third-party finders may raise anything
        for end in range(1, len(parts) + 1):
            spec = PathFinder.find_spec(".".join(parts[:end]), path)
            if spec is None:
                return None
            path = spec.submodule_search_locations
        return spec
    return None


def _source(spec: ModuleSpec) -> bytes:
    with contextlib.suppress(OSError):
        if spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin).read_bytes()
    return b""


def _imports_in(source: bytes, spec: ModuleSpec, names: Collection[str]) -> Iterator[str]:
    package = spec.name if spec.submodule_search_locations is not None else spec.parent or ""
    for node in _statements(parsed(source), names):
        with contextlib.suppress(ImportError):  # a relative import beyond the package: the trial raises it
            yield from _imported(node, package)


def parsed(source: bytes) -> ast.Module:
    """Parse a module; return an empty one if that fails, since importing it raises a better error."""
    # A MemoryError or a RecursionError is raised for deep nesting, a SystemError if a user's thread parses too.
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, SystemError), _PARSING:
        return ast.parse(source)
    return ast.Module(body=[], type_ignores=[])


def _statements(module: ast.Module, names: Collection[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module in order, without recursion: trees of generated code can be deep."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in names:
            continue
        elif not (isinstance(node, ast.If) and _is_for_type_checkers(node.test)):
            left += reversed(list(ast.iter_child_nodes(node)))


def _is_for_type_checkers(test: ast.expr) -> bool:
    read = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test))
    return "TYPE_CHECKING" in read


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    module = "." * node.level + (node.module or "")
    base = importlib.util.resolve_name(module, package) if node.level else module
    yield base
    if not is_installed(base):  # an imported name may be a module of the package
        yield from (f"{base}.{alias.name}" for alias in node.names)
