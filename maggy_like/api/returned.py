"""What a function that was run on a gang returned: written to the run's store, and read from there."""

from __future__ import annotations

from typing import Any

from maggy_like.errors import TrainingError
from maggy_like.storage.checkpoints import load_state, returned_url, save_state


def save_returned(store: str, returned: Any) -> None:
    """Put a value that a worker sent where workers put those that cannot be sent.

    Raises:
        TrainingError: It cannot be written.
    """
    url = returned_url(store)
    try:
        save_state(url, returned)
    except Exception as error:  # of whatever file system it is
        raise TrainingError(
            f"what the function returned cannot be written to {url} ({type(error).__name__}: {error}); make room or "
            "repair the access, then go on with resume=True"
        ) from error


def read_returned(store: str) -> Any:
    """The value that the function returned.

    Raises:
        TrainingError: It cannot be read.
    """
    url = returned_url(store)
    try:
        return load_state(url)
    except Exception as error:  # reading it runs code of what was returned
        raise TrainingError(
            f"what the function returned cannot be read from {url} ({type(error).__name__}: {error}); return plain "
            "data (numbers, text, lists and dicts of them), or pass store=URL of a place that all hosts share"
        ) from error
