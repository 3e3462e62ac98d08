"""The function that Spark carries to a task: it sees whether the machine can serve before it loads what we send."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from maggy_like.processes.pickles import dumps
from maggy_like.protocol.versions import own_versions

TaskFunction = Callable[[Iterator[Any]], Iterator[Any]]
"""Takes what Spark gives a task, rows or batches of them, and gives what the job returns."""

UNFIT = "cannot serve this search"
"""In the error of a task whose machine lacks something: another launch would end in the same way."""

_REMEDY = (
    "install the driver's maggy_like and what it needs there, send it (--py-files, or an environment with "
    "spark.archives: docs/shipping.md), or set PYSPARK_PYTHON to a Python that has it (the driver runs {})"
)


def entry(function: TaskFunction) -> TaskFunction:
    """A function that needs nothing of maggy_like to be unpickled, and runs ``function`` where that can be loaded.

    Spark would load ``function`` itself, and its error names neither the machine nor the interpreter; an older
    maggy_like there may even load it, and misread the task.
    """
    payload, load = dumps(function), _loader(UNFIT)

    def run(given: Iterator[Any]) -> Iterator[Any]:
        yield from load(payload)(given)

    return run


class Sent:
    """A function that arrives in a task as itself, where that can be loaded; else the error says what is missing.

    Args:
        function: Any callable.
        unfit: What a machine cannot do that lacks something: ``cannot serve this search``.
    """

    def __init__(self, function: Callable[..., Any], unfit: str) -> None:
        self._function, self._unfit = function, unfit

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _loader(self._unfit), (dumps(self._function),)


def _loader(unfit: str) -> Callable[[bytes], Any]:
    """A function that unpickles; it is carried by value, and needs nothing but what comes with Python."""
    versions = own_versions()
    package, home, remedy = versions.package, versions.home, _REMEDY.format(sys.executable)

    def load(payload: bytes) -> Any:
        import importlib
        import pickle
        import socket
        import sys

        loaded, lacks = None, ""
        try:
            maggy_like = importlib.import_module("maggy_like")  # whichever lies there

            if maggy_like.__version__ == package:
                loaded = pickle.loads(payload)  # noqa: S301 (it comes from the driver, as this function does)
            else:
                lacks = (
                    f"the driver has maggy_like {package} ({home}) and the worker {maggy_like.__version__} "
                    f"({maggy_like.__file__})"
                )
        except (ImportError, MemoryError, OSError, AttributeError) as error:
            folders = [it for it in map(str, sys.path) if "lib/python3" not in it or it.endswith("-packages")]
            lacks = f"{type(error).__name__}: {error}; it looks for modules in {', '.join(folders[:8])}"
        if lacks:
            raise ImportError(f"{sys.executable} on {socket.gethostname()} {unfit}: {lacks}; {remedy}")
        return loaded

    return load
