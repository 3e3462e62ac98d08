"""What a function is called, and whether it is the user's own."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from functools import partial


def name_of(function: object) -> str:
    """A function's name for messages."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", None) or type(function).__name__)


def is_installed(module: str | None) -> bool:
    """Whether a module belongs to the installation (not to the user's own project)."""
    if not module or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("maggy_like", "optimizers"):
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    origin = (spec.origin or "") if spec is not None else ""
    paths = sysconfig.get_paths()
    return any(origin.startswith(paths[kind]) for kind in ("purelib", "platlib"))
