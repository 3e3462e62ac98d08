"""Importing ahead: a process imports what its forks will need, so that none of them imports it again."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Collection, Iterable

from maggy_like.processes.installation import is_installed

_BROUGHT_LATER = {"torch": "torch._dynamo"}
"""What a package imports only once it is used: torch does so for its first optimizer, which takes about a second."""


def import_ahead(modules: Iterable[str]) -> bool:
    """Import modules, and what they would import later; whether any of it was new.

    A module that cannot be imported is skipped: where it is needed, its import fails again and is reported there.
    """
    before = len(sys.modules)
    for name in modules:
        _try(name)
    for package, later in _BROUGHT_LATER.items():
        if package in sys.modules:
            _try(later)
    _fill_caches()
    return len(sys.modules) > before


def _fill_caches() -> None:
    """Have narwhals look for its plugins, which it does once per process by reading a file of each installed package.

    scikit-learn (1.9 and later) asks narwhals about each array, so each trial would spend 30 ms on this.
    """
    if (dependencies := sys.modules.get("narwhals.dependencies")) is not None:
        with contextlib.suppress(Exception):
            dependencies.is_into_dataframe(None)


_remembered: dict[str, None] = {}


def remember(modules: Iterable[str]) -> None:
    """Have the workers of this process's next runs import what trials have imported."""
    _remembered.update(dict.fromkeys(modules))


def remembered() -> tuple[str, ...]:
    """Return the modules that trials of this process's runs have imported."""
    return tuple(_remembered)


def _try(name: str) -> None:
    if name not in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


SETTLED = 10
"""Calls of :meth:`ImportWatch.settled` without a new module after which a trial has imported what it needs for now."""


class ImportWatch:
    """Finds the modules of installed packages that a trial imports, in the order in which their imports began.

    Args:
        known: The modules that the process had when it was forked.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._known = set(known)
        self._seen = self._reported = len(sys.modules)
        self._calls = 0  # since the last module came

    def settled(self) -> list[str]:
        """Return the new modules once no more have come for some calls; cheap if there are none."""
        count = len(sys.modules)
        self._calls = self._calls + 1 if count == self._seen else 0
        self._seen = count
        return self.new() if self._calls == SETTLED and count != self._reported else []

    def new(self) -> list[str]:
        """Return the modules that no call has returned before."""
        self._reported = len(sys.modules)
        found = [(name, module) for name, module in list(sys.modules.items()) if name not in self._known]
        self._known.update(name for name, _ in found)
        installed: dict[str, bool] = {}
        for name, _ in found:
            top = name.partition(".")[0]
            if top not in installed:
                installed[top] = is_installed(top)
        return [name for name, module in found if installed[name.partition(".")[0]] and _has_spec(name, module)]


def _has_spec(name: str, module: types.ModuleType) -> bool:
    """Whether importing a module by its name would find it again; some packages put objects among the modules."""
    spec = getattr(module, "__spec__", None)
    is_name = all(part.isidentifier() for part in name.split("."))
    return is_name and getattr(spec, "name", None) == name and getattr(spec, "loader", None) is not None
