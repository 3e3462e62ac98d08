"""The errors of the search library, and the root of all errors of the project.

::

    MaggyError
    └── UserError (also a ValueError)   the caller can correct it
        ├── SearchSpaceError            a domain, a configuration or their JSON is wrong
        └── OptimizerError              an optimizer's name, option or proposal is wrong
"""

from __future__ import annotations

from typing import Any


class MaggyError(Exception):
    """Root of every error that this project raises on purpose.

    Attributes:
        result: The partial :class:`maggy_like.Result` of the search that ended with this error; None if no search had
            started.

    Example:
        >>> try:
        ...     result = lagom(train_fn, space)
        ... except MaggyError as error:
        ...     result = error.result
    """

    result: Any = None


class UserError(MaggyError, ValueError):
    """A mistake that the caller can correct; the message has the value and the remedy."""


class SearchSpaceError(UserError):
    """A domain, a search space or a configuration is not valid."""


class OptimizerError(UserError):
    """An optimizer's name, option or proposal is not valid."""
