"""How logging and warnings are configured in this process, for the processes of the trials."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence

from maggy_like.processes.installation import is_installed
from maggy_like.processes.pickles import dumps
from maggy_like.protocol.log_settings import HandlerSettings, LoggerSettings, LogSettings, WarningFilter


def read_logging() -> LogSettings:
    """The levels of all loggers, the handlers of the root logger and of the user's own, and filters of warnings.

    Handlers of an installed library's loggers are left out: the library makes them in the trial's process too.
    """
    manager = logging.root.manager
    found = {name: _read(it) for name, it in list(manager.loggerDict.items()) if isinstance(it, logging.Logger)}
    named = {name: settings for name, settings in found.items() if settings != LoggerSettings()}
    return LogSettings(_read(logging.root), named, manager.disable, tuple(_warning_filters()))


def _read(logger: logging.Logger) -> LoggerSettings:
    handlers: Sequence[logging.Handler] = [handler for handler in logger.handlers if _writes_to_stream(handler)]
    if not handlers:  # what stands in a file of the caller's stands in the trial's log file
        handlers = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)][:1]
    if not handlers or (logger is not logging.root and is_installed(logger.name)):
        return LoggerSettings(logger.level)
    shown = tuple(HandlerSettings(handler.level, _pickled(handler.formatter)) for handler in handlers)
    return LoggerSettings(logger.level, shown, logger.propagate)


def _writes_to_stream(handler: logging.Handler) -> bool:
    """Whether a handler writes to the terminal or the notebook."""
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
    except Exception:  # it holds a connection, say: its format is worth having still
        plain = logging.Formatter(datefmt=formatter.datefmt)
        plain._fmt, plain._style = formatter._fmt, formatter._style
        return dumps(plain)


def _warning_filters() -> Iterator[WarningFilter]:
    """The filters of warnings, to the one that makes errors of all that are left: that is a test runner's."""
    for action, message, category, module, line in list(warnings.filters):
        if action == "error" and category is Warning and message is None and module is None:
            return
        with contextlib.suppress(Exception):  # the class cannot be pickled
            package = category.__module__.partition(".")[0]
            yield WarningFilter(action, _pattern(message), dumps(category), package, _pattern(module), line)


def _pattern(text: re.Pattern[str] | str | None) -> str:
    """What :func:`warnings.filterwarnings` takes: Python's own filters have names in the place of patterns."""
    if isinstance(text, str):
        return rf"{re.escape(text)}\Z"
    return "" if text is None else text.pattern
