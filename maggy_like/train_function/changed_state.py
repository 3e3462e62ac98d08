"""Hints about state that does not pass between the caller and its trials: settings, and values that they change."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from maggy_like.processes.imports import MAINS, is_installed
from maggy_like.protocol.task import Isolation
from maggy_like.protocol.values import encodable, shortened
from maggy_like.train_function.code import code_objects, own_functions, references
from maggy_like.train_function.modules import modules_of, parsed

MAX_CHARACTERS = 1 << 17
"""Size of a module up to which it is read: larger ones are generated, not settings."""

MAX_NAMED = 3
"""Names that a hint mentions."""

_FILLS = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
"""Methods that put values into a container."""


def state_hints(train_fn: Callable[..., Any], isolation: Isolation) -> tuple[str, ...]:
    """Return hints about settings of this process that no trial will see, and values that trials change in vain.

    With the isolation ``none``, trials run in this process and see everything.
    """
    if isolation == "none":
        return ()
    hints = []
    if changed := list(_changed_names(train_fn)):
        more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        hints.append(
            f"{', '.join(changed[:MAX_NAMED])}{more}: trials import modules again, so they find the value in the "
            "source; set it inside train_fn, or pass it as an argument with functools.partial"
        )
    if calls := list(_changed_libraries(train_fn)):
        hints.append(
            f"{', '.join(calls)} was called here and has no effect in the trials, which import the package again; "
            "call it inside train_fn"
        )
    if kept := list(dict.fromkeys(_kept_names(train_fn))):
        hints.append(
            f"{', '.join(kept[:MAX_NAMED])} will stay unchanged in this process, because each trial changes a copy of "
            "its own; report or return the values instead"
        )
    return tuple(map(encodable, hints))


def _changed_names(train_fn: Callable[..., Any]) -> Iterator[str]:
    """Yield a description of each changed constant of the user's modules that the function reads."""
    modules: dict[str, types.ModuleType] = {}
    words: set[str] = set()
    for function in own_functions(train_fn):
        words.update(name for code in code_objects(function) for name in code.co_names)
        home = sys.modules.get(function.__module__ or "")
        for module in (home, *(value for _, _, value in references(function))):
            if isinstance(module, types.ModuleType) and module.__name__ not in MAINS:
                modules[module.__name__] = module
    for module in modules.values():
        if not is_installed(module.__name__):
            for name, written in _constants(module).items():
                current = vars(module).get(name, written)
                if name in words and _differs(current, written):
                    where = f"{module.__name__}.{name}"
                    yield f"{where} is {shortened(current)} here and {shortened(written)} in its source"


def _constants(module: types.ModuleType) -> dict[str, Any]:
    """Return the names that a module's source sets only once, to a literal; empty if it sets computed names."""
    tree = parsed(_source(module))
    if any(map(_sets_computed_names, ast.walk(tree))):
        return {}
    stored = Counter(name for node in ast.walk(tree) for name in _names_set_by(node))
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    constants = {}
    for node in tree.body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign) and len(node.targets) == 1
            else getattr(node, "target", None)
        )
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not isinstance(target, ast.Name):
            continue
        with contextlib.suppress(
            ValueError, TypeError, SyntaxError, MemoryError, RecursionError
        ):  # the value is computed
            value = ast.literal_eval(node.value)
            is_registry = isinstance(value, dict | list | set) and (not value or target.id in read)
            if stored[target.id] == 1 and not stored["*"] and not is_registry:
                constants[target.id] = value
    return constants


def _names_set_by(node: ast.AST) -> list[str]:
    """Return the names that a node of a syntax tree itself sets."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return [node.id]
        case ast.Global():
            return node.names
        case ast.alias():
            return [(node.asname or node.name).partition(".")[0]]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
    return []


def _sets_computed_names(node: ast.AST) -> bool:
    """Whether a module with this node may set any of its names: by ``globals()``, ``exec`` or ``sys.modules``."""
    match node:
        case ast.Name(id="globals" | "exec") | ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            return True
        case ast.Call(func=ast.Name(id="vars"), args=[]):
            return True
    return False


def _kept_names(train_fn: Callable[..., Any]) -> Iterator[str]:
    """Yield what the user's functions keep outside of themselves, such as the best value so far.

    These are containers that they fill and never read, since others may be caches, and numbers that they set.
    """
    for function in own_functions(train_fn):
        outside = {name: value for kind, name, value in references(function) if kind in ("the variable", "the global")}
        containers = {name for name, value in outside.items() if isinstance(value, list | dict | set | deque)}
        numbers = {name for name, value in outside.items() if type(value) in (int, float)}
        if containers or numbers:
            nodes = list(ast.walk(_tree(function)))
            used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
            filled = Counter(name for node in nodes if (name := _filled_by(node)))
            declared = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
            yield from sorted({name for name in containers if 0 < filled[name] == used[name]} | (numbers & declared))


def _tree(function: types.FunctionType) -> ast.AST:
    """Return the parsed source of a function. Empty if there is none, or if it is part of a longer line."""
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        return ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))  # not of what it wraps
    return ast.Module([], [])


def _filled_by(node: ast.AST) -> str:
    """Return the name of the container that a statement fills: ``x.append(1)``, ``x[0] = 1``. Empty for all others."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        method = node.value.func
        place: ast.expr | None = method.value if isinstance(method, ast.Attribute) and method.attr in _FILLS else None
    else:
        target: ast.expr | None = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        place = target.value if isinstance(target, ast.Subscript) else None
    return place.id if isinstance(place, ast.Name) else ""


def _source(module: types.ModuleType) -> bytes:
    with contextlib.suppress(OSError):
        path = Path(getattr(module, "__file__", None) or "")
        if path.suffix == ".py" and path.stat().st_size <= MAX_CHARACTERS:
            return path.read_bytes()
    return b""


def _differs(current: Any, written: Any) -> bool:
    with contextlib.suppress(Exception):  # comparing arrays gives no truth value
        return bool(current != written)
    return True


def _changed_libraries(train_fn: Callable[..., Any]) -> Iterator[str]:
    """Yield the calls that changed settings of a library that the function uses."""
    if not any(own_functions(train_fn)):  # a function of an installed package finds its settings there
        return
    changed = []
    for package, call, is_default in _SETTINGS:
        with contextlib.suppress(Exception):  # another version of the package may differ
            if package in sys.modules and not is_default(sys.modules[package]):
                changed.append((package, call))
    used = {name.partition(".")[0] for name in modules_of(train_fn)} if changed else ()
    yield from (call for package, call in changed if package in used)


def _is_default_of_sklearn(sklearn: Any) -> bool:
    return bool(sklearn.get_config() == sklearn._config._global_config)


_SETTINGS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    (
        "numpy",
        "numpy.seterr(...)",
        lambda it: it.geterr() == {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
    ),
    ("keras", "keras.config.set_dtype_policy(...)", lambda it: it.config.dtype_policy().name == it.config.floatx()),
    ("sklearn", "sklearn.set_config(...)", _is_default_of_sklearn),
    ("torch", "torch.set_default_dtype(...)", lambda it: it.get_default_dtype() == it.float32),
    ("torch", "torch.set_default_device(...)", lambda it: it.get_default_device().type == "cpu"),
    ("torch", "torch.set_float32_matmul_precision(...)", lambda it: it.get_float32_matmul_precision() == "highest"),
    (
        "torch",
        "torch.use_deterministic_algorithms(...)",
        lambda it: not it.are_deterministic_algorithms_enabled(),
    ),
)
"""A package, the call that changes a setting, and a test whether the setting has its default."""
