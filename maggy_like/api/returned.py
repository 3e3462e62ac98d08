"""The value that a function of ``run`` returned: written to the run's store, and read from there."""

from __future__ import annotations

from typing import Any

from maggy_like.api.execution import execute_here
from maggy_like.driver.run_spec import RunSpec
from maggy_like.errors import TrainingError
from maggy_like.protocol.endings import Ending
from maggy_like.results.training import failed_training
from maggy_like.storage.checkpoints import StateLostError, load_state, returned_url, save_state
from optimizers.core.trial import TrialState


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
    except StateLostError as error:
        raise TrainingError(f"what the function returned is lost: {error}; run it again under another name") from error
    except Exception as error:  # reading it runs code of what was returned
        raise TrainingError(
            f"what the function returned cannot be read from {url} ({type(error).__name__}: {error}); return plain "
            "data (numbers, text, lists and dicts of them), or pass store=URL of a place that all hosts share"
        ) from error


def execute_and_return(spec: RunSpec) -> Any:
    """Execute a run, and give what its function returned on rank 0.

    Raises:
        TrainingError: It returned nothing.
    """
    outcome, files = execute_here(spec), spec.settings.files
    if outcome.error is not None:
        raise outcome.error
    machine = outcome.machine
    trial = machine.study.trials[-1]
    if (error := failed_training(trial, files.paths.logs)) is not None:
        raise error
    if machine.ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt
    if trial.state is not TrialState.COMPLETED:
        by = f" ({machine.stopped_by})" if machine.stopped_by else ""
        again = f"run(..., name={files.name!r}, resume=True) goes on with it"
        raise TrainingError(f"it was {machine.ending}{by} before it returned; {again}")
    return read_returned(files.paths.store)
