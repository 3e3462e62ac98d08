"""Messages about a worker without access to the run's store."""

from __future__ import annotations

from maggy_like.driver.state_machine.workers import Worker

REMEDY = "use directory=URL or store=URL of a location that all hosts share"
REMEDY_REFUSAL = "check the package, the credentials and the network on that host, or use another directory=URL"


def store_needed(worker: Worker, unseen: str) -> str:
    """Return the error if a promoted trial must be able to continue on the worker.

    Args:
        worker: Worker without access to the store.
        unseen: Reason, if something refuses.
    """
    return (
        f"{_unseen(worker, unseen)} a promoted trial could not continue there from its checkpoint; {_mend(unseen)}, or "
        "use optimizer=ASHA(mode='stopping')"
    )


def store_wanted(worker: Worker, unseen: str) -> str:
    """Return the line if a trial does not need the store, unless it is interrupted."""
    return f"{_unseen(worker, unseen)} an interrupted trial could not continue there; {_mend(unseen)}"


def _unseen(worker: Worker, unseen: str) -> str:
    why = f" ({unseen})" if unseen else ""
    return f"worker {worker.id.index} on host {worker.host!r} cannot access the store of this run{why}, so"


def _mend(unseen: str) -> str:
    return REMEDY_REFUSAL if unseen else REMEDY
