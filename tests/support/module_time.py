"""Time as one module sees it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def patch_time(monkeypatch: pytest.MonkeyPatch, module: str | ModuleType, **functions: Callable[..., Any]) -> None:
    """Replace functions of ``time`` for one module alone.

    Replaced in ``time`` itself, they would be called by every thread of the process, those of earlier tests too.

    Args:
        monkeypatch: Undoes it.
        module: The module, which says ``import time``, or its name.
        functions: What ``sleep``, ``time`` or ``monotonic`` are to it.
    """
    patched = import_module(module) if isinstance(module, str) else module
    monkeypatch.setattr(patched, "time", SimpleNamespace(**{**vars(patched.time), **functions}))
