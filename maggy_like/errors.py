"""The errors of the product, all under one root.

::

    MaggyError
    ├── UserError (also a ValueError)    something the caller can correct
    │   ├── SearchSpaceError             a domain, a configuration or a search space
    │   ├── OptimizerError               an optimizer's name, option or proposal
    │   ├── ConfigError                  an argument of lagom or another function
    │   ├── DataError                    a table: its columns, their types, their values
    │   ├── TrainFunctionError           train_fn: its parameters, its pickle, its reports
    │   └── TrialsFailedError            the first trials failed identically
    ├── PlatformError                    files or messages of the product are invalid
    │   ├── ProtocolError                a message of no known version
    │   └── JournalError                 a run's journal is damaged, foreign or in use
    │       └── JournalLostError         a run's journal was removed during the run
    ├── TrainingError                    a training run failed for good
    └── InfraError                       machines and processes
        ├── EngineError                  the engine cannot provide the workers
        ├── StoreError                   a disk or store refused for too long
        │   └── SavedStateError          a checkpoint is damaged or missing (also a UserError)
        └── WorkerError                  a worker cannot serve the run

Catch :class:`UserError` for mistakes that the caller can correct, and :class:`MaggyError` for all errors::

    try:
        result = maggy_like.lagom(train_fn, space)
    except maggy_like.errors.TrialsFailedError as error:
        print(error)
"""

from __future__ import annotations

from typing import Any

from optimizers.errors import MaggyError, OptimizerError, SearchSpaceError, UserError

__all__ = [
    "ConfigError",
    "DataError",
    "EngineError",
    "InfraError",
    "JournalError",
    "JournalLostError",
    "MaggyError",
    "OptimizerError",
    "PlatformError",
    "ProtocolError",
    "SavedStateError",
    "SearchSpaceError",
    "StoreError",
    "TrainFunctionError",
    "TrainingError",
    "TrialsFailedError",
    "UserError",
    "WorkerError",
]


class ConfigError(UserError):
    """An argument is invalid, for example one of :func:`maggy_like.lagom`."""


class DataError(UserError):
    """A table cannot be used: a column is missing, or has a type or values that a model cannot take."""


class TrainFunctionError(UserError):
    """The training function cannot be run, or reported something that is not a number."""


class TrialsFailedError(UserError):
    """The first trials of a search failed identically and none succeeded (see :class:`maggy_like.FailurePolicy`).

    Args:
        message: Number of trials that failed, with their failure.
        traceback: Traceback of one of the failures. It is part of the error's text, unless the display has shown it.
        remedy: Advice that ends the text.
    """

    def __init__(self, message: str, traceback: str = "", remedy: str = "") -> None:
        super().__init__(message, traceback, remedy)
        self.has_shown_traceback = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {**self.__dict__, "has_shown_traceback": False}

    def __str__(self) -> str:
        message, traceback, remedy = map(str, self.args)
        shown = "" if self.has_shown_traceback else traceback.rstrip()
        return message + (f"\n\n{shown}\n" if shown else "") + (f"\n{remedy}" if remedy else "")


class PlatformError(MaggyError):
    """A file or message of this project is invalid."""


class ProtocolError(PlatformError):
    """A message between processes is malformed or of another version."""


class JournalError(PlatformError):
    """The journal of a run is damaged, foreign or in use by another process."""


class JournalLostError(JournalError):
    """The journal of a run was removed or moved during the run, so the run cannot continue."""


class TrainingError(MaggyError):
    """A training of :func:`maggy_like.run`, of ``result.train`` or after a search failed for good."""


class InfraError(MaggyError):
    """Machines or processes failed."""


class EngineError(InfraError):
    """The engine cannot provide the requested workers."""


class StoreError(InfraError):
    """A disk or store refused reads or writes of a run. Use ``resume=True`` once it serves again."""


class SavedStateError(StoreError, UserError):
    """A state that a trial saved is damaged or missing. The message has its file."""


class WorkerError(InfraError):
    """A worker cannot serve the run."""
