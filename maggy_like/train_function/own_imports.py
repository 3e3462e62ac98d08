"""What the user's own modules import, read from their source: they are run by nothing but a trial."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from maggy_like.processes.installation import is_installed

MAX_CHARACTERS = 1 << 20
"""Characters of the user's project that are read at most: parsing them takes about half a second."""


def imports_of(modules: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the installed modules that the user's own modules import, those that these import included.

    Args:
        modules: Names of the user's own modules.
        names: Names that the training function uses: of the imports inside of functions, only those in functions
            with these names count.
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
    """Find a module without importing the packages that it lies in."""
    path, parts, spec = None, module.split("."), None
    with contextlib.suppress(Exception):  # finders of others may raise anything
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
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # Python says so where it is imported
        for node in _statements(ast.parse(source), names):
            yield from _imported(node, package)


def _statements(node: ast.AST, names: Collection[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name not in names:
            continue
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _statements(child, names)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    module = "." * node.level + (node.module or "")
    base = importlib.util.resolve_name(module, package) if node.level else module
    yield base
    if not is_installed(base):  # what is imported may be a module of the package
        yield from (f"{base}.{alias.name}" for alias in node.names)
