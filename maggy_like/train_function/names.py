"""What a function is called, and whether it is the user's own."""

from __future__ import annotations

import sys
from functools import partial

from maggy_like.processes.installation import is_installed_module


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
    return is_installed_module(top)
