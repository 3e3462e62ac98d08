"""What makes a process unsafe to fork: threads, children, GPUs, and state that processes cannot share."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

from maggy_like.processes.imports import is_installed
from maggy_like.processes.system import children, open_descriptors

_THREAD_PATIENCE = 0.1
"""Seconds until a thread that was joined has ended."""

_SEEDS_OF_USERS = 1 << 32
"""torch draws its first seed from 64 bits; a user set a smaller one."""


def why_not_whole() -> str:
    """Return why a fork would lack something of this process; empty if it would not."""
    deadline = time.monotonic() + _THREAD_PATIENCE
    while (threads := _threads()) != 1:
        if threads is None:
            return "cannot be inspected without /proc"
        if time.monotonic() >= deadline:
            return "starts a thread"
        time.sleep(0.001)
    if children():
        return "starts a process"
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "uses the GPU"
    return ""


class SharingCheck:
    """Checks whether forks can share what is loaded in a block, as if each of them had loaded it.

    Forks share open files and connections. They do not run their parent's exit hooks and finalizers. Their random
    numbers are seeded again, which would undo a seed that a module sets.
    """

    def __init__(self) -> None:
        self.reason = ""  # why forks cannot share it; empty if they can

    def __enter__(self) -> None:
        self._before = _descriptors(), set(finalizers()), _numpy_is_seeded(), _torch_seed()
        self._modules = set(sys.modules)
        self._called: list[str] = []
        self._restore = [
            _watch(atexit, "register", self._called, of_users=True),
            _watch(random, "seed", self._called),
            _watch(random, "setstate", self._called),
        ]

    def __exit__(self, *error: object) -> None:
        for restore in self._restore:
            restore()
        if error[0] is None:
            self.reason = self._find_reason()

    def _find_reason(self) -> str:
        if reason := why_not_whole():
            return reason
        descriptors, before, numpy_was_seeded, torch_seed = self._before
        if _descriptors() != descriptors:
            return "opens a file or a connection"
        if "register" in self._called or any(map(is_of_users, set(finalizers()) - before)):
            return "registers a function to be called at exit"
        seed = _torch_seed()
        torch_is_seeded = seed != torch_seed and (torch_seed is not None or (seed or 0) < _SEEDS_OF_USERS)
        if self._called or torch_is_seeded or _numpy_is_seeded() != numpy_was_seeded:
            return "seeds the random numbers"
        new = [module for name, module in list(sys.modules.items()) if name not in self._modules]
        if any(_has_generator(module) for module in new if not is_installed(getattr(module, "__name__", None))):
            return "creates a random number generator"
        return ""


def _threads() -> int | None:
    """Return the number of threads, including those of C libraries; None without /proc."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return None


def _descriptors() -> set[int]:
    return {fd for fd in open_descriptors() if os.path.lexists(f"/proc/self/fd/{fd}")}


def finalizers() -> dict[Any, Any]:
    """Return the pending finalizers of ``weakref.finalize``."""
    return dict(getattr(weakref.finalize, "_registry", {}))


def is_of_users(finalizer: Any) -> bool:
    """Return whether a finalizer is of the user's code, or of a temporary directory."""
    found = finalizer.peek()
    return found is not None and (found[1].__module__ == "tempfile" or not is_installed(found[1].__module__))


def _numpy_is_seeded() -> bool:
    """Return whether numpy's global generator was seeded: it then loses the entropy that it began with."""
    numpy_random: Any = sys.modules.get("numpy.random")
    with contextlib.suppress(AttributeError):
        return numpy_random is not None and numpy_random.mtrand._rand._bit_generator.seed_seq is None
    return False


def _torch_seed() -> int | None:
    torch: Any = sys.modules.get("torch")
    return torch.initial_seed() if hasattr(torch, "initial_seed") else None


def _has_generator(module: Any) -> bool:
    kinds: tuple[type, ...] = (random.Random,)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        kinds += (numpy_random.Generator, numpy_random.RandomState)
    if hasattr(torch := sys.modules.get("torch"), "Generator"):
        kinds += (torch.Generator,)  # type: ignore[union-attr]
    return any(isinstance(value, kinds) for value in list(vars(module).values()))


def _watch(module: types.ModuleType, name: str, called: list[str], *, of_users: bool = False) -> Callable[[], None]:
    """Record the calls of a function, optionally only those by the user's modules; return what ends that."""
    function = getattr(module, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if not (of_users and is_installed(sys._getframe(1).f_globals.get("__name__"))):
            called.append(name)
        return function(*args, **kwargs)

    setattr(module, name, watched)
    return lambda: setattr(module, name, function)
