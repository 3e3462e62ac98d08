"""The errors of the search library, under the root that all of the project's errors share.

::

    MaggyError
    └── UserError (also a ValueError)   something the caller can mend
        ├── SearchSpaceError            a domain, a configuration or their JSON is wrong
        └── OptimizerError              an optimizer's name, option or proposal is wrong
"""

from __future__ import annotations


class MaggyError(Exception):
    """Root of every error that this project raises on purpose."""


class UserError(MaggyError, ValueError):
    """Something the caller can mend; the message names the value and the mend."""


class SearchSpaceError(UserError):
    """A domain, a search space or a configuration is not valid."""


class OptimizerError(UserError):
    """An optimizer's name, option or proposal is not valid."""
