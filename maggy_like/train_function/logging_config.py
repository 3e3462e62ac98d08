"""Logging and warnings in a trial's process, as the process that called ``lagom`` has configured them."""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
import warnings
from typing import cast

from maggy_like.protocol.log_settings import LoggerSettings, LogSettings, WarningFilter


def set_up_logging(settings: LogSettings) -> None:
    """Configure this process's logging and warnings. A logger to which a module has given handlers keeps them."""
    logging.disable(settings.disabled)
    _set_up(logging.getLogger(), settings.root)
    for name, wanted in settings.named.items():
        _set_up(logging.getLogger(name), wanted)
    for it in reversed(settings.warnings):
        if it.package in sys.modules:  # no package is imported because of its warnings
            with contextlib.suppress(Exception):  # the class, or the action, is of another version
                _add(it)


def _add(it: WarningFilter) -> None:
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
    """The formatter; Python's own where it needs what is not installed here."""
    with contextlib.suppress(Exception):
        formatter: logging.Formatter | None = pickle.loads(pickled) if pickled else None
        return formatter
    return logging.Formatter(logging.BASIC_FORMAT)
