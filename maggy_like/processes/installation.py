"""What is Python's own or of an installed package: entries of a module search path, files and modules."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig

_STANDARD = re.compile(r"[/\\]lib(64)?[/\\]python3(\.\d+)?t?([/\\]lib-dynload)?[/\\]?$|[/\\]python3\d+t?\.zip$", re.I)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]?$", re.I)
_OF_A_PACKAGE = re.compile(r"[/\\](site|dist)-packages[/\\]", re.I)


def is_standard(entry: str) -> bool:
    """Whether a folder or archive is Python's standard library."""
    return _STANDARD.search(entry) is not None


def is_installation(entry: str) -> bool:
    """Whether a folder is of Python or of installed packages, not one that was put before them."""
    return is_standard(entry) or _INSTALLED.search(entry) is not None


def is_installed_file(path: str) -> bool:
    """Whether a file is of Python or of an installed package, in whichever environment that is.

    Packages of this interpreter's may lie in several places: a user's own, a system's beneath a virtual environment,
    a notebook's.
    """
    paths = sysconfig.get_paths()
    return _OF_A_PACKAGE.search(path) is not None or any(
        path.startswith(paths[kind] + os.sep) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )


def is_installed_module(name: str) -> bool:
    """Whether a module that can be found here, or its package, is installed; a namespace package if all of it is."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except Exception:  # finders of others may raise anything
        return False
    if spec is None:
        return False
    if spec.origin is not None:
        return is_installed_file(spec.origin)
    folders = list(spec.submodule_search_locations or ())
    return bool(folders) and all(is_installed_file(folder + os.sep) for folder in folders)


def is_installed(module: str | None) -> bool:
    """Whether a module belongs to the installation (not to the user's own project)."""
    if not module or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("maggy_like", "optimizers"):
        return True
    return is_installed_module(top)
