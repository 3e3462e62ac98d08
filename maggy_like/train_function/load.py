"""The training function in a trial's process: loaded with the caller's sources and logging, and its arguments."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import linecache
import logging
import pickle
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

from maggy_like.errors import MaggyError
from maggy_like.processes.imports import MAINS
from maggy_like.protocol.task import LoggerSettings, LogSettings, WarningFilter, WorkerTask


class NotFoundError(Exception):
    """A pickle refers to a module that is not found in this process, or to a name that its module does not have.

    Attributes:
        module: Name of the module.
        member: The missing name. Empty if the module is not found.
    """

    def __init__(self, module: str, member: str, why: str) -> None:
        super().__init__(why)
        self.module = module
        self.member = member


_loading: int | None = None  # the thread that loads a function


def is_loading() -> bool:
    """Return whether this thread loads a training function, so that a call comes from the import of a module."""
    return _loading == threading.get_ident()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Let no import in this thread start a run, since it only loads a training function."""
    global _loading
    _loading = threading.get_ident()
    try:
        yield
    finally:
        _loading = None


def unpickle_train_fn(data: bytes) -> Callable[..., Any]:
    """Unpickle a training function in a process of its own.

    The process gets a ``__main__`` with the functions and classes that the function uses, so that multiprocessing can
    pickle them by name. Raise NotFoundError for what it refers to and cannot be found.
    """
    unpickler = _Unpickler(io.BytesIO(data))
    with loading():
        function: Callable[..., Any] = unpickler.load()
    _enter_main(unpickler.main_globals)
    return function


def load_train_fn(task: WorkerTask) -> Callable[..., Any]:
    """Unpickle the training function; it comes from the driver that launched us, not from a socket.

    A trial's own process also gets the text of the caller's notebook cells, for tracebacks, and its logging.
    """
    if task.isolation == "none":
        function: Callable[..., Any] = _Unpickler(io.BytesIO(task.train_fn)).load()
        return function
    function = unpickle_train_fn(task.train_fn)
    for name, text in task.sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    if task.logging is not None:
        set_up_logging(task.logging)
    return function


def why_not_loaded(error: BaseException) -> str:
    """Return why a function could not be loaded."""
    if isinstance(error, NotFoundError):
        return str(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.removeprefix(f"{type(error).__module__}.") if isinstance(error, MaggyError) else text


def _enter_main(names: Mapping[str, Any]) -> None:
    """Make a ``__main__`` with ``names``, but without a file: no process must run the caller's script again."""
    main = types.ModuleType("__main__")
    vars(main).update((name, value) for name, value in names.items() if not name.startswith("__"))
    sys.modules["__main__"] = main
    if (name := names.get("__name__", "__main__")) != "__main__":  # the caller is a child of multiprocessing
        sys.modules[name] = main


class _Unpickler(pickle.Unpickler):
    """Unpickles what cloudpickle has pickled."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data)
        # one dict, of the functions that were pickled by value because they are of the caller's script
        self.main_globals: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        try:
            found = super().find_class(module, name)
        except AttributeError as error:  # else its module has raised it
            if module not in sys.modules:
                raise
            raise NotFoundError(module, name, f"only the process that started the run has {module}.{name}") from error
        except ModuleNotFoundError as error:
            raise _not_found(module, error) from error
        if module.startswith("cloudpickle."):
            return {"_make_function": self._make_function, "subimport": _import}.get(name, found)
        return found

    def _make_function(self, code: types.CodeType, globals: dict[str, Any], *rest: Any) -> Any:
        from cloudpickle import cloudpickle

        if globals.get("__name__") in MAINS:
            self.main_globals = globals
        return cloudpickle._make_function(code, globals, *rest)


def _import(module: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _not_found(module, error) from error


def _not_found(module: str, error: ModuleNotFoundError) -> Exception:
    """Return the error for a module that is not found; the same error if the module itself has raised it."""
    is_it = error.name is not None and f"{module}.".startswith(f"{error.name}.")
    return NotFoundError(module, "", f"ModuleNotFoundError: {error}") if is_it else error


def set_up_logging(settings: LogSettings) -> None:
    """Configure this process's logging and warnings; a logger to which a module has given handlers keeps them."""
    logging.disable(settings.disabled)
    _set_up(logging.getLogger(), settings.root)
    for name, wanted in settings.named.items():
        _set_up(logging.getLogger(name), wanted)
    for it in reversed(settings.warnings):
        if it.package in sys.modules:  # no package is imported because of its warnings
            with contextlib.suppress(Exception):  # the class, or the action, is of another version
                _add_filter(it)


def _add_filter(it: WarningFilter) -> None:
    category = cast("type[Warning]", pickle.loads(it.category))
    warnings.filterwarnings(it.action, it.message, category, it.module, it.line)  # type: ignore[arg-type]


def _set_up(logger: logging.Logger, wanted: LoggerSettings) -> None:
    if wanted.level:
        logger.setLevel(wanted.level)
    if logger.handlers or not wanted.handlers:
        return
    logger.propagate = wanted.propagate
    for settings in wanted.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(settings.level)
        handler.setFormatter(_formatter(settings.formatter))
        logger.addHandler(handler)


def _formatter(pickled: bytes) -> logging.Formatter | None:
    """Unpickle a formatter; return Python's default if it needs what is not installed here."""
    with contextlib.suppress(Exception):
        formatter: logging.Formatter | None = pickle.loads(pickled) if pickled else None
        return formatter
    return logging.Formatter(logging.BASIC_FORMAT)


class HasBudget(Protocol):
    """An object that can be passed as ``reporter``."""

    @property
    def budget(self) -> int:
        """Steps of a full training."""

    def _grant(self) -> int:
        """Return the steps of this attempt."""


def arguments_for(
    parameters: Iterable[inspect.Parameter], config: Mapping[str, Any], reporter: HasBudget
) -> dict[str, Any]:
    """Return the arguments of a training function that the configuration or the runtime fills.

    Its parameters may be names of the search space, ``reporter``, ``config`` (all parameters as a dict), ``budget``, or
    ``**anything`` for the rest. ``budget`` is that of the reporter. A function without a reporter cannot be paused in a
    report, so there it is the steps of this attempt.
    """
    arguments: dict[str, Any] = {}
    parameters = list(parameters)
    reports = any(parameter.name == "reporter" for parameter in parameters)
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**config, **arguments}
        elif parameter.name in config:
            arguments[parameter.name] = config[parameter.name]
        elif parameter.name == "reporter":
            arguments["reporter"] = reporter
        elif parameter.name == "config":
            arguments["config"] = dict(config)
        elif parameter.name == "budget":  # is read only then: see Reporter.budget
            arguments["budget"] = reporter.budget if reports else reporter._grant()
    return arguments
