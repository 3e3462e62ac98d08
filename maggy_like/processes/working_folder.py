"""The folder in which this process works, and the processes that it starts."""

from __future__ import annotations

import os

from maggy_like.errors import ConfigError


def working_folder() -> str:
    """Return the working folder.

    Raises:
        ConfigError: It was deleted, or moved to where this process cannot see it.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"the working folder of this process was deleted or replaced ({error.strerror}); call os.chdir(...) with a "
            "folder that exists, or start Python again from there"
        ) from error
