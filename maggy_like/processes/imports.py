"""The modules of this process: their search path, which are installed, and which its forks will need."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from maggy_like.processes.garbage import no_collections


def module_path() -> tuple[str, ...]:
    """Return the text entries of ``sys.path``; Python itself ignores others, such as a ``pathlib.Path``."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


_STANDARD = re.compile(r"[/\\]lib(64)?[/\\]python3(\.\d+)?t?([/\\]lib-dynload)?[/\\]?$|[/\\]python3\d+t?\.zip$", re.I)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]?$", re.I)
_OF_A_PACKAGE = re.compile(r"[/\\](site|dist)-packages[/\\]", re.I)


def is_standard(entry: str) -> bool:
    """Return whether a directory or archive is Python's standard library."""
    return _STANDARD.search(entry) is not None


def is_installation(entry: str) -> bool:
    """Return whether an entry of the search path is Python's or of installed packages."""
    return is_standard(entry) or _INSTALLED.search(entry) is not None


def is_installed_file(path: str) -> bool:
    """Return whether a file is of Python or of an installed package, in any environment.

    The packages of an interpreter may be in several places: the user's, the system's below a virtual environment, or a
    notebook's.
    """
    return _OF_A_PACKAGE.search(path) is not None or path.startswith(_of_python())


@cache
def _of_python() -> tuple[str, ...]:
    """Return the directories in which this interpreter has its modules, each with a separator at its end."""
    paths = sysconfig.get_paths()
    return tuple(paths[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


PACKAGE = str(Path(__file__).parents[1])
"""The directory of this package."""


def is_library_file(path: str) -> bool:
    """Return whether code is of Python, of an installed package or of this one, and not of the user."""
    return path.startswith(("<frozen", PACKAGE + os.sep)) or is_installed_file(path)


def is_installed_module(name: str) -> bool:
    """Return whether a module's top-level package is found here and installed, with all parts of a namespace."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except Exception:  # third-party finders may raise anything
        return False
    if spec is None:
        return False
    if spec.origin is not None:
        return is_installed_file(spec.origin)
    directories = list(spec.submodule_search_locations or ())
    return bool(directories) and all(is_installed_file(directory + os.sep) for directory in directories)


MAINS = "__main__", "__mp_main__"
"""Names of the module that a process was started with: Python's, and multiprocessing's for its children."""


def is_installed(module: str | None) -> bool:
    """Return whether a module belongs to the installation, and not to the user's project."""
    if not module or module in MAINS:
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("maggy_like", "optimizers"):
        return True
    return is_installed_module(top)


_RUN = """
import sys
del sys.argv[0]
sys.path[:] = path
from runpy import run_module
run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def start_path(path: Iterable[str]) -> list[str]:
    """Return a module search path in the order in which a process of ours starts: the standard library comes first.

    Otherwise a ``types.py`` beside the user's script would replace the standard library's in the process's own imports.
    A process that runs code of the user sets the path's own order once it has them.

    Example:
        >>> start_path(["/home/me", "/usr/lib/python3.11", "/env/lib/python3.11/site-packages"])
        ['/usr/lib/python3.11', '/home/me', '/env/lib/python3.11/site-packages']
    """
    return sorted(path, key=lambda entry: not is_standard(entry))


def command(module: str, path: Iterable[str], arguments: Iterable[str] = ()) -> list[str]:
    """Return the command that runs ``python -m module arguments`` with the module search path ``path``.

    The path is set once the interpreter has started. ``PYTHONPATH`` would set it before, so that the user's own modules
    could replace those that the interpreter needs; it cannot hold directories with a colon either.
    """
    code = f"path = {start_path(path)!a}{_RUN}"
    return [sys.executable, "-P", "-c", code, module, *arguments]


_BROUGHT_LATER = {"torch": "torch._dynamo"}
"""Modules that a package imports at its first use: torch does so for its first optimizer, in about a second."""


def import_ahead(modules: Iterable[str]) -> None:
    """Import modules, and those that they would import later, into a process that will be forked.

    A module that cannot be imported is skipped: a trial that needs it reports the error.
    """
    with no_collections(freeze=True):
        for name in modules:
            _try(name)
        for package, later in _BROUGHT_LATER.items():
            if package in sys.modules:
                _try(later)
        _fill_caches()


_PLUGINS = {
    "lightning.fabric.utilities.registry": "lightning.pytorch.callbacks_factory",
    "lightning_fabric.utilities.registry": "pytorch_lightning.callbacks_factory",
}
"""Modules in which Lightning searches for plugins for each Trainer, and the group of entry points."""


def _fill_caches() -> None:
    """Search for plugins of libraries here. Otherwise each trial would read a file of each installed package.

    scikit-learn (1.9 and later) calls narwhals for each array, which takes 30 ms the first time. Lightning takes 15 to
    40 ms for each Trainer, and does not keep what it found.
    """
    if (dependencies := sys.modules.get("narwhals.dependencies")) is not None:
        with contextlib.suppress(Exception):
            dependencies.is_into_dataframe(None)
    for name, group in _PLUGINS.items():
        registry: Any = sys.modules.get(name)
        search = getattr(registry, "entry_points", None)
        if search is not None and not hasattr(search, "cache_info"):
            registry.entry_points = cache(search)
            with contextlib.suppress(Exception):
                registry.entry_points(group=group)


_remembered: dict[str, None] = {}


def remember(modules: Iterable[str]) -> None:
    """Remember modules that trials imported, for the workers of this process's next runs."""
    _remembered.update(dict.fromkeys(modules))


def remembered() -> tuple[str, ...]:
    """Return the modules that trials of this process's runs imported."""
    return tuple(_remembered)


def _try(name: str) -> None:
    if name not in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


SETTLED = 10
"""Calls of :meth:`ImportWatch.settled` without a new module after which a trial's imports count as complete."""


class ImportWatch:
    """Finds the modules of installed packages that a trial imports, in the order in which their imports began.

    New modules are at the end of ``sys.modules``, and only that is read: a fork that touches the names of all modules
    copies thousands of pages of memory.

    ``known`` are the modules that the process had as it was forked.
    """

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self._found = dict[str, None]()
        self._last = next(reversed(sys.modules))
        self._seen = self._reported = len(sys.modules)
        self._calls = 0  # since the last new module

    def settled(self) -> list[str]:
        """Return the new modules once some calls have found no more; cheap without new modules."""
        count = len(sys.modules)
        self._calls = self._calls + 1 if count == self._seen else 0
        self._seen = count
        return self.new() if self._calls == SETTLED and count != self._reported else []

    def new(self) -> list[str]:
        """Return the modules that no call has returned before."""
        self._reported = len(sys.modules)
        newest = list(takewhile(self._last.__ne__, reversed(sys.modules)))  # in one step, as other threads import
        found = [name for name in reversed(newest) if name not in self._known and name not in self._found]
        self._last = next(iter(newest), self._last)
        self._found.update(dict.fromkeys(found))
        installed: dict[str, bool] = {}
        for name in found:
            top = name.partition(".")[0]
            if top not in installed:
                installed[top] = is_installed(top)
        return [name for name in found if installed[name.partition(".")[0]] and _has_spec(name, sys.modules.get(name))]


def _has_spec(name: str, module: types.ModuleType | None) -> bool:
    """Return whether a module can be imported by its name; some packages put other objects into ``sys.modules``."""
    spec = getattr(module, "__spec__", None)
    is_name = all(part.isidentifier() for part in name.split("."))
    return is_name and getattr(spec, "name", None) == name and getattr(spec, "loader", None) is not None
