"""Logging in a trial's process, as the process that called ``lagom`` has configured it."""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys

from maggy_like.protocol.log_settings import LoggerSettings, LogSettings


def set_up_logging(settings: LogSettings) -> None:
    """Configure this process's logging. A logger that a module of the function's has given handlers keeps them."""
    logging.disable(settings.disabled)
    _set_up(logging.getLogger(), settings.root)
    for name, wanted in settings.named.items():
        _set_up(logging.getLogger(name), wanted)


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
