"""The training function as bytes for the workers, with the sources and the logging of this process."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from maggy_like.errors import TrainFunctionError
from maggy_like.processes.imports import MAINS, is_installed, is_installed_file
from maggy_like.processes.pickles import Pickler, dumps
from maggy_like.protocol.task import HandlerSettings, Isolation, LoggerSettings, LogSettings, WarningFilter
from maggy_like.protocol.values import encodable
from maggy_like.train_function.code import name_of, own_functions, references

LARGE = 50_000_000
"""Size in bytes from which a variable is worth a hint, since each worker receives and loads it."""

_MAX_NAMED = 3

_OF_SPARK = (
    "let the function refer to the rows themselves (df.toPandas()), or write them with df.write.parquet(...) and read "
    "the files there (maggy_like.ml.ParquetLoader)"
)


def pickle_train_fn(train_fn: Callable[..., Any]) -> bytes:
    """Return the function as bytes for the workers."""
    return pickle_named(train_fn, name_of(train_fn))


def size_hints(train_fn: Callable[..., Any], payload: bytes, isolation: Isolation) -> tuple[str, ...]:
    """Return a hint about the large variables that are sent with the function, if any are sent."""
    if isolation == "none" or len(payload) <= LARGE:
        return ()
    found = sorted(_large_variables(train_fn, {id(train_fn)}), reverse=True)
    named = [f"{name!r} ({size / 1e6:.0f} MB)" for size, name in found[:_MAX_NAMED]]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    what = f"{', '.join(named)}{more}" if named else f"data of {len(payload) / 1e6:.0f} MB"
    hint = (
        f"{name_of(train_fn)} uses {what}, which each worker receives before its first trial; to start sooner, write "
        "the data to files and open those in the function, with numpy.load(path, mmap_mode='r') or ParquetLoader"
    )
    return (encodable(hint),)


def _large_variables(function: Any, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Yield size and name of the large values that a function holds, directly or by another function."""
    for _, name, value in references(_holder(function)):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if (size := _size(value)) > LARGE:
            is_code = isinstance(value, types.FunctionType | types.MethodType | partial)
            yield from (is_code and list(_large_variables(value, seen))) or [(size, name)]


def _holder(function: Any) -> Any:
    """Return the object that holds a function's values: the object of a method, or the function itself."""
    return function.__self__ if isinstance(function, types.MethodType) else function


class _Counter(io.RawIOBase):
    """A file that only counts the bytes written to it."""

    def __init__(self) -> None:
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = memoryview(data).nbytes
        self.size += written
        return written


def _size(value: Any) -> int:
    """Return the size of a pickled value in bytes; 0 if it cannot be pickled by itself."""
    counter = _Counter()
    try:
        _Pickler(counter).dump(value)
    except Exception:  # an object's own methods may raise anything
        return 0
    return counter.size


def pickle_named(value: Any, what: str) -> bytes:
    """Return a value as bytes for the workers."""
    try:
        return _dumps(value)
    except Exception as error:
        culprit = _find_culprit(value)
        if culprit is None:
            raise TrainFunctionError(f"{what} cannot be sent to the workers: {error}") from error
        where, name, found = culprit
        why, remedy = f" ({error})", "create it inside the function"
        if isinstance(error, _Useless):
            remedy = error.remedy
        elif type(found).__module__.startswith("pyspark."):
            why, remedy = ": Spark's sessions and tables exist only on the driver", _OF_SPARK
        elif name == "get_ipython":  # IPython writes it for a line that begins with ! or %
            raise TrainFunctionError(
                f"{what} has a line that begins with ! or %, or calls get_ipython(), but trials run without IPython; "
                "use subprocess.run(...) for a shell command, and leave magics out"
            ) from error
        raise TrainFunctionError(
            f"{what} uses {where} {name!r} of type {type(found).__name__}, which cannot be sent "
            f"to the workers{why}; {remedy}"
        ) from error


_OF_VARIABLES = {
    "Accumulator": "report the values with reporter.report(count=...), or return them",
    "Broadcast": "pass its value",
}
"""What serves instead of a shared variable of Spark, by its class."""


class _Useless(TypeError):
    """A value that can be pickled would not work in a trial."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class _Pickler(Pickler):
    """Rejects what would not work in a trial."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__name__ in _OF_VARIABLES and type(obj).__module__.startswith("pyspark."):
            why = "it works only in Spark's own tasks, and a trial has its own process"
            raise _Useless(why, _OF_VARIABLES[type(obj).__name__])
        if type(obj).__name__ in ("SparkSession", "DataFrame") and type(obj).__module__.startswith("pyspark.sql."):
            raise TypeError("it exists only on the driver")  # those of Spark Connect can be pickled, but not loaded
        return super().reducer_override(obj)


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _find_culprit(function: Any, above: frozenset[int] = frozenset()) -> tuple[str, str, Any] | None:
    held = _holder(function)
    above |= {id(held)}
    for where, name, value in references(held):
        if id(_holder(value)) in above:  # a function that calls itself
            continue
        try:
            _dumps(value)
        except Exception:
            return (_is_users_code(value) and _find_culprit(value, above)) or (where, name, value)
    return None


def _is_users_code(value: Any) -> bool:
    """Return whether a value is code whose parts the user knows, not what a library has made of a function."""
    code = getattr(value, "__code__", None)
    is_code = isinstance(value, types.FunctionType | types.MethodType | partial)
    return is_code and (code is None or not is_installed_file(code.co_filename))


MAX_SOURCE = 100_000
"""Maximum characters of a file whose text is sent with the function."""


def sources_of(train_fn: Callable[..., Any]) -> dict[str, str]:
    """Return the text of the files and notebook cells of functions pickled by value, for tracebacks."""
    names = {function.__code__.co_filename for function in own_functions(train_fn) if function.__module__ in MAINS}
    texts = {name: "".join(linecache.getlines(name)) for name in sorted(names)}
    return {name: text for name, text in texts.items() if 0 < len(text) <= MAX_SOURCE}


def read_logging() -> LogSettings:
    """Return the levels of all loggers, the handlers of the root logger and of the user's, and warning filters.

    Handlers of an installed library's loggers are left out, since the library makes them in the trial's process too.
    """
    manager = logging.root.manager
    found = {name: _read(it) for name, it in list(manager.loggerDict.items()) if isinstance(it, logging.Logger)}
    named = {name: settings for name, settings in found.items() if settings != LoggerSettings()}
    return LogSettings(_read(logging.root), named, manager.disable, tuple(_warning_filters()))


def _read(logger: logging.Logger) -> LoggerSettings:
    handlers: Sequence[logging.Handler] = [handler for handler in logger.handlers if _writes_to_stream(handler)]
    if not handlers:  # what the caller logs to a file, a trial logs to its own log file
        handlers = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)][:1]
    if not handlers or (logger is not logging.root and is_installed(logger.name)):
        return LoggerSettings(logger.level)
    shown = tuple(HandlerSettings(handler.level, _pickled(handler.formatter)) for handler in handlers)
    return LoggerSettings(logger.level, shown, logger.propagate)


def _writes_to_stream(handler: logging.Handler) -> bool:
    """Return whether a handler writes to the terminal or the notebook."""
    if type(handler).__module__.startswith("rich."):
        return True
    if not isinstance(handler, logging.StreamHandler) or isinstance(handler, logging.FileHandler):
        return False
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return type(handler) is logging.StreamHandler or any(handler.stream is stream for stream in standard)


def _pickled(formatter: logging.Formatter | None) -> bytes:
    if formatter is None:
        return b""
    try:
        return dumps(formatter)
    except Exception:  # it may hold a connection; its format is still useful
        plain = logging.Formatter(datefmt=formatter.datefmt)
        plain._fmt, plain._style = formatter._fmt, formatter._style
        return dumps(plain)


def _warning_filters() -> Iterator[WarningFilter]:
    """Yield the filters of warnings, up to one that turns all others into errors, which is that of a test runner."""
    for action, message, category, module, line in list(warnings.filters):
        if action == "error" and category is Warning and message is None and module is None:
            return
        with contextlib.suppress(Exception):  # the class cannot be pickled
            package = category.__module__.partition(".")[0]
            yield WarningFilter(action, _pattern(message), dumps(category), package, _pattern(module), line)


def _pattern(text: re.Pattern[str] | str | None) -> str:
    """Return what :func:`warnings.filterwarnings` takes. Python's own filters have names instead of patterns."""
    if isinstance(text, str):
        return rf"{re.escape(text)}\Z"
    return "" if text is None else text.pattern
