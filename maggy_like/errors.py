"""The errors of the product, all under one root.

::

    MaggyError
    ├── UserError (also a ValueError)    something the caller can correct
    │   ├── SearchSpaceError             a domain, a configuration or a search space
    │   ├── OptimizerError               an optimizer's name, option or proposal
    │   ├── ConfigError                  an argument of lagom
    │   ├── DataError                    a table: its columns, their types, their values
    │   ├── TrainFunctionError           train_fn: its parameters, its pickle, its reports
    │   └── TrialsFailedError            the first trials failed in the same way; the cause
    ├── PlatformError                    what we wrote or read is not as it must be
    │   ├── ProtocolError                a message that no version of ours sends
    │   └── JournalError                 a run's journal is damaged, foreign or in use
    │       └── JournalLostError         a run's journal was removed while the run went on
    ├── TrainingError                    a training failed for good; what it failed of
    └── InfraError                       machines and processes
        ├── EngineError                  the engine cannot provide the gang
        ├── StoreError                   a disk or store refused for too long
        │   └── SavedStateError          a saved state is damaged or gone (also a UserError)
        └── WorkerError                  a worker cannot serve the run
"""

from __future__ import annotations

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
    """An argument of :func:`maggy_like.lagom` is not valid."""


class DataError(UserError):
    """A table cannot be used as it is: a column is missing, or has a type or values that a model cannot take."""


class TrainFunctionError(UserError):
    """The training function cannot be run as it is, or reported something that is no measurement."""


class TrialsFailedError(UserError):
    """The first trials all failed in the same way (see :class:`maggy_like.FailurePolicy`)."""


class PlatformError(MaggyError):
    """Something that this project wrote or read is not as it must be."""


class ProtocolError(PlatformError):
    """A message on the wire is malformed or of another version."""


class JournalError(PlatformError):
    """The journal of a run is damaged, foreign or in use by another process."""


class JournalLostError(JournalError):
    """The journal of a run was removed or moved while the run went on; there is nothing to go on with."""


class TrainingError(MaggyError):
    """A training failed for good: of :func:`maggy_like.run`, of ``result.train`` or after a search."""


class InfraError(MaggyError):
    """Machines or processes failed the run."""


class EngineError(InfraError):
    """The engine cannot provide the gang that was asked for."""


class StoreError(InfraError):
    """A disk or store refused what a run had to write or read; go on with ``resume=True`` once it serves again."""


class SavedStateError(StoreError, UserError):
    """A state that a trial saved is damaged, or was removed; the message names its file."""


class WorkerError(InfraError):
    """A worker cannot serve the run."""
