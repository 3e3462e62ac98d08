"""Loads the training function in a trial's process, with the ``__main__``, sources and logging of the caller's."""

from __future__ import annotations

import io
import linecache
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from maggy_like.protocol.task import WorkerTask
from maggy_like.train_function.logging_config import set_up_logging


def load_train_fn(task: WorkerTask) -> Callable[..., Any]:
    """Unpickle the training function; it comes from the driver that launched us, not from a socket.

    In a process of its own it then finds what the caller's process has: a ``__main__`` with the functions and classes
    that it uses, so that multiprocessing can pickle those by name; the text of notebook cells, for tracebacks; logging.
    """
    unpickler = _Unpickler(io.BytesIO(task.train_fn))
    function: Callable[..., Any] = unpickler.load()
    if task.isolation != "none":
        _enter_main(unpickler.main_globals)
        for name, text in task.sources.items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        if task.logging is not None:
            set_up_logging(task.logging)
    return function


def _enter_main(names: Mapping[str, Any]) -> None:
    """Make a ``__main__`` that has ``names``. It has no file: no process must run the caller's script again."""
    main = types.ModuleType("__main__")
    vars(main).update((name, value) for name, value in names.items() if not name.startswith("__"))
    sys.modules["__main__"] = main


class _Unpickler(pickle.Unpickler):
    """Unpickles what cloudpickle has pickled.

    Attributes:
        main_globals: Those of functions that were pickled by value because they are ``__main__``'s: all in one dict.
    """

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data)
        self.main_globals: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._make_function if name == "_make_function" and module.startswith("cloudpickle.") else found

    def _make_function(self, code: types.CodeType, globals: dict[str, Any], *rest: Any) -> Any:
        from cloudpickle import cloudpickle

        if globals.get("__name__") == "__main__":
            self.main_globals = globals
        return cloudpickle._make_function(code, globals, *rest)
