"""How logging and warnings are configured in the process that called ``lagom``, for the processes of the trials."""

from __future__ import annotations

import logging

import msgspec


class HandlerSettings(msgspec.Struct, frozen=True):
    """A handler that shows records to people.

    Attributes:
        level: From which on it takes records.
        formatter: Pickled; empty for none.
    """

    level: int
    formatter: bytes


class LoggerSettings(msgspec.Struct, frozen=True):
    """The settings of one logger.

    Attributes:
        level: Its own; 0 where its parent's counts.
        handlers: Those that show its records.
        propagate: Whether its parents get them too.
    """

    level: int = logging.NOTSET
    handlers: tuple[HandlerSettings, ...] = ()
    propagate: bool = True


class WarningFilter(msgspec.Struct, frozen=True):
    """A filter of :mod:`warnings`.

    Attributes:
        action: What happens to the warnings.
        message: Pattern of their beginnings; empty for any.
        category: Their class, pickled.
        package: The package that has the class.
        module: Pattern of the modules that warn; empty for any.
        line: The line that warns; 0 for any.
    """

    action: str
    message: str
    category: bytes
    package: str
    module: str
    line: int


class LogSettings(msgspec.Struct, frozen=True):
    """How logging and warnings are configured.

    Attributes:
        root: The root logger.
        named: Loggers for which anything is set.
        disabled: Up to which level all records are dropped (see :func:`logging.disable`).
        warnings: Filters of warnings, the one that is asked first in front.
    """

    root: LoggerSettings
    named: dict[str, LoggerSettings] = {}
    disabled: int = logging.NOTSET
    warnings: tuple[WarningFilter, ...] = ()
