"""The errors of the search library, under the root that all of the project's errors share.

::

    MaggyError
    └── UserError (also a ValueError)   something the caller can correct
        ├── SearchSpaceError            a domain, a configuration or their JSON is wrong
        └── OptimizerError              an optimizer's name, option or proposal is wrong
"""

from __future__ import annotations

from typing import Any


class MaggyError(Exception):
    """Root of every error that this project raises on purpose.

    Attributes:
        result: The :class:`maggy_like.Result` so far of the search that ended with this error; None where no search
            had begun.

    Example:
        >>> try:
        ...     result = lagom(train_fn, space)
        ... except MaggyError as error:
        ...     result = error.result
    """

    result: Any = None


class UserError(MaggyError, ValueError):
    """Something the caller can correct; the message names the value and the remedy."""


class SearchSpaceError(UserError):
    """A domain, a search space or a configuration is not valid."""


class OptimizerError(UserError):
    """An optimizer's name, option or proposal is not valid."""
